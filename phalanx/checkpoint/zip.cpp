#include "phalanx/checkpoint/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

constexpr uint32_t local_signature = 0x04034b50, central_signature = 0x02014b50,
                   end_signature = 0x06054b50, end64_signature = 0x06064b50,
                   locator64_signature = 0x07064b50;
constexpr int64_t local_bytes = 30, central_bytes = 46, end_bytes = 22, end64_bytes = 56,
                  locator64_bytes = 20;
constexpr int64_t longest_directory = 256 << 20;
constexpr int64_t alignment = 64;

template <class... Parts>
void check(bool condition, const ZipRange& range, const Parts&... parts) {
  require(condition, ExitCode::checkpoint, range.file.path(), ": the archive at byte ", range.begin,
          " is damaged or cut: ", parts...);
}

std::string bytes_at(const ZipRange& range, int64_t offset, int64_t bytes) {
  check(offset >= 0 && bytes >= 0 && offset <= range.bytes && bytes <= range.bytes - offset, range,
        bytes, " bytes at ", offset, " are wanted, it has ", range.bytes);
  std::string found(static_cast<size_t>(bytes), '\0');
  range.file.read(found.data(), bytes, range.begin + offset);
  return found;
}

// A little-endian number in bytes that are known to be there.
template <class Number>
Number number(const std::string& bytes, size_t at) {
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof(Number));
  return value;
}

struct Directory {
  uint64_t entries, bytes, offset;
};

Directory find_directory64(const ZipRange& range, int64_t end) {
  const std::string locator = bytes_at(range, end - locator64_bytes, locator64_bytes);
  check(number<uint32_t>(locator, 0) == locator64_signature, range, "its end has no zip64 locator");
  const auto offset = number<uint64_t>(locator, 8);
  check(offset < uint64_t{1} << 62, range, "its end is placed at ", offset);
  const std::string record = bytes_at(range, static_cast<int64_t>(offset), end64_bytes);
  check(number<uint32_t>(record, 0) == end64_signature, range, "its zip64 end is missing");
  return {number<uint64_t>(record, 32), number<uint64_t>(record, 40), number<uint64_t>(record, 48)};
}

// The end of the directory: the last bytes, unless a comment follows.
Directory find_directory(const ZipRange& range) {
  check(range.bytes >= end_bytes, range, "it has ", range.bytes, " bytes");
  for (const int64_t comment : {0, 0xffff}) {
    const int64_t tail = std::min(range.bytes, end_bytes + comment);
    const std::string last = bytes_at(range, range.bytes - tail, tail);
    for (int64_t at = tail - end_bytes; at >= 0; --at) {
      if (number<uint32_t>(last, at) != end_signature ||
          number<uint16_t>(last, at + 20) != tail - end_bytes - at)
        continue;
      const Directory found{number<uint16_t>(last, at + 10), number<uint32_t>(last, at + 12),
                            number<uint32_t>(last, at + 16)};
      const bool wide =
          found.entries == 0xffff || found.bytes == 0xffffffff || found.offset == 0xffffffff;
      return wide ? find_directory64(range, range.bytes - tail + at) : found;
    }
  }
  check(false, range, "it has no directory at its end");
  return {};
}

// Sizes and offset that do not fit 32 bits are in an extra field, in this order.
void read_wide(const ZipRange& range, const std::string& extra, uint64_t& plain, uint64_t& stored,
               uint64_t& header) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const auto id = number<uint16_t>(extra, at), bytes = number<uint16_t>(extra, at + 2);
    at += 4;
    check(bytes <= extra.size() - at, range, "an extra field is cut");
    size_t from = at;
    if (id == 1)
      for (uint64_t* value : {&plain, &stored, &header})
        if (*value == 0xffffffff && from + 8 <= at + bytes)
          *value = number<uint64_t>(extra, from), from += 8;
    at += bytes;
  }
}

void put(std::string& out, uint64_t value, int bytes) {
  out.append(reinterpret_cast<const char*>(&value), bytes);
}

// What local headers and the directory have in common.
void put_common(std::string& out, uint32_t crc, int64_t bytes, const std::string& name,
                int64_t extra) {
  put(out, 0, 2);           // version needed
  put(out, 0x0800, 2);      // names are UTF-8
  put(out, 0, 2);           // stored
  put(out, 0x00210000, 4);  // 1 January 1980: equal contents, equal files
  put(out, crc, 4);
  put(out, bytes, 4), put(out, bytes, 4);
  put(out, name.size(), 2), put(out, extra, 2);
}

}  // namespace

bool begins_as_zip(const ZipRange& range) {
  return range.bytes >= 4 && number<uint32_t>(bytes_at(range, 0, 4), 0) == local_signature;
}

std::vector<ZipEntry> read_zip_directory(const ZipRange& range) {
  const Directory place = find_directory(range);
  check(place.bytes <= static_cast<uint64_t>(range.bytes) &&
            place.offset <= static_cast<uint64_t>(range.bytes) &&
            place.entries <= place.bytes / central_bytes,
        range, "its directory of ", place.entries, " entries has ", place.bytes, " bytes at ",
        place.offset);
  require(place.bytes <= longest_directory, ExitCode::checkpoint, range.file.path(),
          ": a directory of ", place.bytes, " bytes is too long");
  const std::string directory =
      bytes_at(range, static_cast<int64_t>(place.offset), static_cast<int64_t>(place.bytes));
  std::vector<ZipEntry> entries;
  for (size_t at = 0, left = place.entries; left > 0; --left) {
    check(at + central_bytes <= directory.size() &&
              number<uint32_t>(directory, at) == central_signature,
          range, "its directory breaks off");
    const auto flags = number<uint16_t>(directory, at + 8),
               method = number<uint16_t>(directory, at + 10);
    const size_t name = number<uint16_t>(directory, at + 28),
                 extra = number<uint16_t>(directory, at + 30),
                 comment = number<uint16_t>(directory, at + 32);
    uint64_t stored = number<uint32_t>(directory, at + 20),
             plain = number<uint32_t>(directory, at + 24),
             header = number<uint32_t>(directory, at + 42);
    check(name + extra + comment <= directory.size() - at - central_bytes, range,
          "its directory breaks off");
    ZipEntry entry;
    entry.name = directory.substr(at + central_bytes, name);
    entry.crc = number<uint32_t>(directory, at + 16);
    read_wide(range, directory.substr(at + central_bytes + name, extra), plain, stored, header);
    entry.plain = method == 0 && (flags & 1) == 0;
    check((plain == stored || !entry.plain) && stored <= static_cast<uint64_t>(range.bytes) &&
              header <= static_cast<uint64_t>(range.bytes),
          range, "entry ", entry.name, " has ", stored, " of ", plain, " bytes at ", header);
    entry.header = range.begin + static_cast<int64_t>(header);
    entry.bytes = static_cast<int64_t>(stored);
    entries.push_back(std::move(entry));
    at += central_bytes + name + extra + comment;
  }
  return entries;
}

int64_t locate(const ZipRange& range, const ZipEntry& entry) {
  require(entry.plain, ExitCode::checkpoint, range.file.path(), ": entry ", entry.name,
          " is compressed or encrypted; only archives of stored entries, as torch.save writes "
          "them, are read");
  const int64_t header = entry.header - range.begin;
  const std::string local =
      bytes_at(range, header, local_bytes + static_cast<int64_t>(entry.name.size()));
  check(number<uint32_t>(local, 0) == local_signature &&
            number<uint16_t>(local, 26) == entry.name.size() &&
            local.substr(local_bytes) == entry.name,
        range, "entry ", entry.name, " does not begin where the directory says");
  const int64_t data = header + static_cast<int64_t>(local.size()) + number<uint16_t>(local, 28);
  check(data <= range.bytes && entry.bytes <= range.bytes - data, range, "entry ", entry.name,
        " of ", entry.bytes, " bytes goes beyond its end");
  return range.begin + data;
}

std::string read_entry(const ZipRange& range, const ZipEntry& entry, int64_t limit) {
  require(entry.bytes <= limit, ExitCode::checkpoint, range.file.path(), ": entry ", entry.name,
          " has ", entry.bytes, " bytes, at most ", limit, " are read");
  const std::string bytes = bytes_at(range, locate(range, entry) - range.begin, entry.bytes);
  check(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) == entry.crc, range,
        "entry ", entry.name, " is not what its checksum says");
  return bytes;
}

void ZipWriter::add(const std::string& name, const void* data, int64_t bytes) {
  const int64_t header = out_.bytes() - begin_;
  require(header + bytes < int64_t{0xf0000000}, ExitCode::checkpoint,
          "an archive of more than 4 GiB cannot be written");
  const int64_t begin = header + local_bytes + static_cast<int64_t>(name.size()) + 4;
  const int64_t padding = (alignment - begin % alignment) % alignment;
  const auto crc = static_cast<uint32_t>(
      crc32_z(0, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
  std::string local;
  put(local, local_signature, 4);
  put_common(local, crc, bytes, name, padding + 4);
  local += name;
  local += "FB";  // an extra field that holds the padding
  put(local, padding, 2);
  local.append(static_cast<size_t>(padding), 'Z');
  out_.write(local.data(), static_cast<int64_t>(local.size()));
  out_.write(data, bytes);

  put(directory_, central_signature, 4);
  put(directory_, 0, 2);  // made by
  put_common(directory_, crc, bytes, name, 0);
  put(directory_, 0, 6);  // no comment, disk, attributes within
  put(directory_, 0, 4);  // attributes outside
  put(directory_, header, 4);
  directory_ += name;
  ++entries_;
}

void ZipWriter::finish() {
  std::string end;
  put(end, end_signature, 4);
  put(end, 0, 4);  // disks
  put(end, entries_, 2), put(end, entries_, 2);
  put(end, directory_.size(), 4);
  put(end, out_.bytes() - begin_, 4);
  put(end, 0, 2);  // no comment
  directory_ += end;
  out_.write(directory_.data(), static_cast<int64_t>(directory_.size()));
}

const BlockReader::Block& BlockReader::block_at(int64_t offset) const {
  const int64_t begin = offset / block * block;
  for (const Block& known : blocks_)
    if (known.offset == begin) return known;
  Block& place = blocks_[next_];
  next_ = (next_ + 1) % blocks_.size();
  place.offset = -1;
  place.bytes.resize(static_cast<size_t>(std::min(block, size() - begin)));
  file_.read(place.bytes.data(), static_cast<int64_t>(place.bytes.size()), begin);
  place.offset = begin;
  return place;
}

void BlockReader::read(void* out, int64_t bytes, int64_t offset) const {
  if (bytes > block || offset < 0 || bytes > size() - offset) return file_.read(out, bytes, offset);
  for (int64_t done = 0; done < bytes;) {
    const Block& held = block_at(offset + done);
    const int64_t from = offset + done - held.offset;
    const int64_t count =
        std::min<int64_t>(bytes - done, static_cast<int64_t>(held.bytes.size()) - from);
    std::memcpy(static_cast<char*>(out) + done, held.bytes.data() + from,
                static_cast<size_t>(count));
    done += count;
  }
}

}  // namespace phalanx
