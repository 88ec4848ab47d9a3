#pragma once

#include <memory>

#include "phalanx/checkpoint/storage.h"

namespace phalanx {

class S3Client;

/// s3://bucket/prefix. There are no folders, only keys with '/' in them, and nothing is renamed: a
/// step-N without manifest.json is unfinished.
class S3Storage final : public Storage {
 public:
  static constexpr int64_t part_bytes = 16 << 20;  ///< of a multipart upload, and read at once
  static constexpr int64_t most_parts = 10'000;

  /// Error(checkpoint) if the URL is none or there are no credentials. Asks the server nothing.
  explicit S3Storage(const std::string& url);
  ~S3Storage() override;
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
  std::string key(const std::string& name) const;
  bool has_manifest(const std::string& folder) const;

  std::string bucket_, prefix_;  // prefix: "" or without '/' at its ends
  std::shared_ptr<const S3Client> client_;
};

}  // namespace phalanx
