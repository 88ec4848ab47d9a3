#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/base/files.h"

namespace phalanx {

/// A reader for places where a request costs as much as a megabyte: small reads (256 KB or less)
/// that follow each other closely, such as the rows of a box or small tensors, come from blocks
/// that grow from 64 KB to 2 MB; other small reads take 64 KB at once, large ones what they want.
class ReadAhead final : public Reader {
 public:
  explicit ReadAhead(std::unique_ptr<Reader> from);
  int64_t size() const override { return from_->size(); }
  const std::string& path() const override { return from_->path(); }
  void read(void* out, int64_t bytes, int64_t offset) const override;

 private:
  void fill(int64_t bytes, int64_t offset) const;

  std::unique_ptr<Reader> from_;
  mutable std::vector<char> block_;
  mutable int64_t begin_ = 0;     ///< of the block, in the file
  mutable int64_t last_end_ = 0;  ///< of the last read
  mutable int64_t ahead_;         ///< bytes of the last block
};

}  // namespace phalanx
