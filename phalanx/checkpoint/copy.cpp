#include "phalanx/checkpoint/copy.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/lock.h"
#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/pieces.h"
#include "phalanx/checkpoint/state_file.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

struct Range {
  int64_t begin, end;
  const ManifestEntry* entry;
  const ManifestEntry::Part* part;
};

// One file, front to back; hashes what lies between two offsets.
void copy_file(const Reader& from, Writer& to, std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t position = 0;
  const auto copy_to = [&](int64_t end) {
    Hasher hasher;
    for_each_piece(from, position, end - position, [&](const char* bytes, int64_t count) {
      hasher.add(bytes, count);
      to.write(bytes, count);
    });
    position = end;
    return hasher.result();
  };
  for (const Range& range : ranges) {
    require(range.begin >= position, ExitCode::checkpoint, from.path(), ": ",
            part_name(*range.entry, range.part->box), " lies in the bytes of another tensor");
    copy_to(range.begin);
    require(copy_to(range.end) == range.part->hash, ExitCode::checkpoint, from.path(),
            " is damaged: ", part_name(*range.entry, range.part->box), " (bytes ", range.begin,
            " to ", range.end, ") does not have the manifest's hash; nothing was copied");
  }
  copy_to(from.size());
  to.finish();
}

// The checkpoint of that manifest, if it is in the place already; then nothing is to be done. One
// of that step with another manifest is another run's, or damaged: nobody asked to lose it.
std::optional<std::string> find_copy(const Storage& place, int64_t step, const std::string& json) {
  std::optional<std::string> other;
  for (const auto& item : place.list("")) {
    if (step_of(item.name) != step) continue;
    const auto files = place.list(item.name);
    if (!holds(files, "manifest.json", false)) continue;  // an object store's unfinished save
    const bool same =
        holds(files, "manifest.json.xxh128", false) &&
        read_text(place, in_folder(item.name, "manifest.json.xxh128")) == manifest_hash_line(json);
    if (same && size_defects(place, item.name, parse_manifest(json, "")).empty()) return item.name;
    if (!same) other = item.name;
  }
  require(!other, ExitCode::checkpoint, place.path(other.value_or("")),
          " is another checkpoint of step ", step,
          "; copy to another place, or replace it (--replace)");
  return std::nullopt;
}

}  // namespace

CopiedCheckpoint copy_checkpoint(const Storage& from, const std::string& name, Storage& to,
                                 bool replace) {
  const std::string json = read_manifest_text(from, name);
  const Manifest manifest = parse_manifest(json, from.path(in_folder(name, "manifest.json")));
  require_sizes(from, name, manifest);
  std::map<std::string, std::vector<Range>> ranges;
  for (const auto& entry : manifest.entries)
    for (const auto& part : entry.parts)
      ranges[part.file].push_back({part.offset, part.offset + part.bytes, &entry, &part});
  const PlaceLock lock(to.path(""));
  CopiedCheckpoint copied{.step = manifest.run.step};
  if (!replace)
    if (const auto there = find_copy(to, manifest.run.step, json)) {
      copied.path = to.path(*there);
      copied.was_there = true;
      return copied;
    }
  std::string unfinished = to.begin(manifest.run.step);
  try {
    for (const auto& [file, bytes] : manifest.files) {
      const auto reader = from.open(in_folder(name, file));
      const auto writer = to.create(in_folder(unfinished, file));
      copy_file(*reader, *writer, ranges[file]);
      ++copied.files;
      copied.bytes += bytes;
    }
    require_sizes(to, unfinished, manifest);  // nobody has cleaned up here meanwhile
    TaskProgress progress;
    write_manifest(to, unfinished, json, {}, progress);
    const std::string lasting = to.publish(unfinished, manifest.run.step);
    unfinished.clear();
    copied.path = to.path(lasting);
    if (candidates(to).front().created <= manifest.created) point_latest(to, lasting);
    return copied;
  } catch (...) {
    if (!unfinished.empty()) try {
        to.remove(unfinished);
      } catch (const Error&) {  // the next start removes it
      }
    throw;
  }
}

}  // namespace phalanx
