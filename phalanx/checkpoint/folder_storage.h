#pragma once

#include "phalanx/checkpoint/storage.h"

namespace phalanx {

/// A folder of the file system, local or shared. What is unfinished or being deleted has a name
/// that begins with ".tmp-". Where the file system cannot exchange two names, a checkpoint that is
/// replaced is step-N-K until the new one is there.
class FolderStorage final : public Storage {
 public:
  explicit FolderStorage(std::string root);
  std::string path(const std::string& name) const override;
  std::unique_ptr<Reader> open(const std::string& name) const override;
  std::unique_ptr<Writer> create(const std::string& name) override;
  void replace(const std::string& name, std::string_view contents) override;
  std::vector<Item> list(const std::string& folder) const override;
  void remove(const std::string& name) override;
  std::string begin(int64_t step) override;
  std::string publish(const std::string& unfinished, int64_t step) override;
  std::vector<std::string> checkpoints() const override;
  std::vector<std::string> unfinished() const override;

 private:
  std::string put_in_place(const std::string& unfinished, int64_t step);
  std::string free_name(int64_t step) const;

  std::string root_;
};

}  // namespace phalanx
