#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/base/files.h"

namespace phalanx {

// Zip archives as torch.save writes them: entries are stored, not compressed, so that an entry's
// bytes can be read where they lie. Source: PKWARE's APPNOTE, sections 4.3 and 4.5.3 (zip64).

struct ZipEntry {
  std::string name;
  int64_t header = 0;  ///< where its local header begins, in the file
  int64_t bytes = 0;
  uint32_t crc = 0;
  bool plain = true;  ///< neither compressed nor encrypted
};

/// A range of a file that holds an archive and nothing else.
struct ZipRange {
  const Reader& file;
  int64_t begin, bytes;
};

/// Whether the range begins as an archive with entries does.
bool begins_as_zip(const ZipRange& range);

/// The entries, as the archive's directory lists them. Error(checkpoint) that names the file and
/// what is wrong: cut, places outside of the range.
std::vector<ZipEntry> read_zip_directory(const ZipRange& range);

/// Where the entry's bytes begin in the file. Error(checkpoint) if they are compressed.
int64_t locate(const ZipRange& range, const ZipEntry& entry);

/// Its bytes, at most `limit`, compared with its checksum.
std::string read_entry(const ZipRange& range, const ZipEntry& entry, int64_t limit);

/// Writes an archive of stored entries at a writer's end. Data begin at multiples of 64 bytes of
/// the archive, as torch.save has them. Archives up to 4 GiB.
class ZipWriter {
 public:
  explicit ZipWriter(Writer& out) : out_(out), begin_(out.bytes()) {}
  void add(const std::string& name, const void* data, int64_t bytes);
  void finish();

 private:
  Writer& out_;
  int64_t begin_;
  std::string directory_;
  int64_t entries_ = 0;
};

/// Keeps blocks around what was read last, so that many small reads that are close to each other
/// cost one.
class BlockReader final : public Reader {
 public:
  explicit BlockReader(const Reader& file) : file_(file) {}
  int64_t size() const override { return file_.size(); }
  const std::string& path() const override { return file_.path(); }
  void read(void* out, int64_t bytes, int64_t offset) const override;

 private:
  static constexpr int64_t block = 64 << 10;
  struct Block {
    int64_t offset = -1;
    std::string bytes;
  };
  const Block& block_at(int64_t offset) const;

  const Reader& file_;
  mutable std::vector<Block> blocks_ = std::vector<Block>(4);
  mutable size_t next_ = 0;
};

}  // namespace phalanx
