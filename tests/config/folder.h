#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace phalanx::testing {

/// A new folder for the files of one test, removed with the object.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "phalanx-config-XXXXXX").string()) {
    if (!mkdtemp(path_.data())) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  void operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name, const std::string& content) const {
    const auto path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

 private:
  std::string path_;
};

}  // namespace phalanx::testing
