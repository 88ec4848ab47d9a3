#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/s3_client.h"

namespace phalanx {

/// An object, read by ranged GETs, several at once of what is large. The first request brings its
/// size and its first 64 KB, from which small files and headers are read.
class S3Reader final : public Reader {
 public:
  S3Reader(std::shared_ptr<const S3Client> client, std::string key, std::string path);
  int64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(void* out, int64_t bytes, int64_t offset) const override;

 private:
  void read_piece(char* out, int64_t bytes, int64_t offset) const;

  std::shared_ptr<const S3Client> client_;
  std::string key_, path_;
  std::vector<char> head_;
  int64_t size_ = 0;
};

/// An object, uploaded in parts, several of them at once while the next is filled; a small one in
/// one request. Holds at most 5 parts. The upload is given up if finish() was not called.
class S3Writer final : public Writer {
 public:
  S3Writer(std::shared_ptr<const S3Client> client, std::string key, std::string path);
  ~S3Writer() override;
  void write(const void* data, int64_t bytes) override;
  int64_t bytes() const override { return bytes_; }
  void finish() override;

 private:
  void begin_upload();
  void send_part();
  void await_part();
  void complete_upload();
  std::string doing() const { return "cannot write " + path_; }

  std::shared_ptr<const S3Client> client_;
  std::string key_, path_, upload_;               // its id, once there is more than a part
  std::vector<std::string> tags_;                 // of the parts sent
  std::deque<std::future<std::string>> sending_;  // the tags of those after them
  std::vector<char> buffer_;
  int64_t bytes_ = 0;
};

}  // namespace phalanx
