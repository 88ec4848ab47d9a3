#include "phalanx/checkpoint/read_ahead.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

// Byte i is a mix of i; counts what it is asked for.
class Counted final : public Reader {
 public:
  explicit Counted(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(void* out, int64_t bytes, int64_t offset) const override {
    require(offset >= 0 && offset + bytes <= size_, ExitCode::checkpoint, "cut");
    require(!failing, ExitCode::checkpoint, "failing");
    for (int64_t i = 0; i < bytes; ++i) static_cast<char*>(out)[i] = at(offset + i);
    ++requests, read_ += bytes;
  }
  static char at(int64_t i) { return static_cast<char>((i * 2654435761) >> 7); }
  mutable int64_t requests = 0, read_ = 0;
  bool failing = false;

 private:
  int64_t size_;
  std::string path_ = "counted";
};

bool right(const std::vector<char>& bytes, int64_t offset) {
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != Counted::at(offset + static_cast<int64_t>(i))) return false;
  return true;
}

TEST(ReadAhead, GivesTheBytesInFewRequests) {
  constexpr int64_t size = 20 << 20;
  auto owned = std::make_unique<Counted>(size);
  Counted& from = *owned;
  const ReadAhead reader(std::move(owned));
  const auto expect_read = [&](int64_t bytes, int64_t offset) {
    std::vector<char> out(bytes);
    reader.read(out.data(), bytes, offset);
    ASSERT_TRUE(right(out, offset)) << bytes << " bytes at " << offset;
  };
  for (int64_t row = 0; row < 4096; ++row) expect_read(1024, row * 4096);  // columns of 16 MB
  EXPECT_LT(from.requests, 20);
  from.requests = from.read_ = 0;
  for (int64_t i = 0; i < 4; ++i) expect_read(4 << 20, i * (5 << 20));  // large ones: no more
  EXPECT_EQ(from.requests, 4);
  EXPECT_EQ(from.read_, 16 << 20);
  from.requests = from.read_ = 0;
  for (int64_t i = 0; i < 8; ++i) expect_read(100, i * (2 << 20));  // far from each other
  EXPECT_LE(from.read_, 8 * (64 << 10));

  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto offset = static_cast<int64_t>(random() % size);
    const auto most = std::min<int64_t>(size - offset, random() % 8 == 0 ? 1 << 20 : 5000);
    expect_read(static_cast<int64_t>(random() % (most + 1)), offset);
  }
  expect_read(7, size - 7);
  expect_read(0, size);

  char byte;
  EXPECT_THROW(reader.read(&byte, 2, size - 1), Error);
  EXPECT_THROW(reader.read(&byte, 1, -1), Error);
  from.failing = true;
  EXPECT_THROW(reader.read(&byte, 1, 3 << 20), Error);
  from.failing = false;
  expect_read(1, 3 << 20);  // not from the block that failed
}

}  // namespace
}  // namespace phalanx
