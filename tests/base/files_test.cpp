#include "phalanx/base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace phalanx {
namespace {

// A pipe would be waited for, a device read as an empty file.
TEST(Files, OnlyFilesAreReadAsFiles) {
  const std::string pipe =
      text(std::filesystem::temp_directory_path().string(), "/phalanx-test-pipe-", getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    for (bool mapped : {false, true}) try {
        mapped ? void(MappedFile(path, ExitCode::data)) : void(InputFile(path, ExitCode::data));
        ADD_FAILURE() << path << " was opened";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::data);
        EXPECT_EQ(std::string(error.what()),
                  "cannot read " + path + ": it is a pipe or a device; name a file");
      }
  }
  std::filesystem::remove(pipe);
}

}  // namespace
}  // namespace phalanx
