#include "phalanx/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/hash.h"

namespace phalanx {
namespace {

using nlohmann::json;

json to_json(const RunState& run) {
  json values = json::object();
  for (const auto& [key, value] : run.values)
    std::visit([&, name = key](const auto& held) { values[name] = held; }, value);
  return {{"step", run.step},
          {"consumed_samples", run.consumed_samples},
          {"config", run.config},
          {"versions", run.versions},
          {"values", values}};
}

Value parse_value(const std::string& key, const json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  fail(ExitCode::checkpoint, "value ", key, " is neither a number nor a string");
}

RunState parse_run(const json& fields) {
  RunState run;
  run.step = fields.at("step").get<int64_t>();
  run.consumed_samples = fields.at("consumed_samples").get<int64_t>();
  run.config = fields.at("config").get<std::string>();
  run.versions = fields.at("versions").get<std::map<std::string, std::string>>();
  for (const auto& [key, value] : fields.at("values").items())
    run.values[key] = parse_value(key, value);
  return run;
}

Dtype parse_dtype(const std::string& wanted) {
  const auto known = dtype_named(&DtypeRow::name, wanted);
  require(known.has_value(), ExitCode::checkpoint, "element type ", wanted, " is not known");
  return *known;
}

// The sum of numbers that are not negative.
void add(int64_t& sum, int64_t bytes, const char* of) {
  require(!__builtin_add_overflow(sum, bytes, &sum), ExitCode::checkpoint, of,
          " have more bytes in all than 63 bits can count");
}

ManifestEntry::Part parse_part(const json& fields) {
  ManifestEntry::Part part;
  part.box = {fields.at("offset").get<std::vector<int64_t>>(),
              fields.at("size").get<std::vector<int64_t>>()};
  part.file = fields.at("file").get<std::string>();
  part.offset = fields.at("file_offset").get<int64_t>();
  part.bytes = fields.at("bytes").get<int64_t>();
  part.hash = hash_from_hex(fields.at("xxh3_128").get<std::string>());
  return part;
}

ManifestEntry parse_entry(const json& fields, const std::map<std::string, int64_t>& files) {
  ManifestEntry entry;
  entry.name = fields.at("name").get<std::string>();
  entry.role = fields.at("role").get<std::string>();
  entry.dtype = parse_dtype(fields.at("dtype").get<std::string>());
  entry.shape = fields.at("shape").get<std::vector<int64_t>>();
  int64_t bytes = size_of(entry.dtype);
  for (int64_t size : entry.shape)
    require(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), ExitCode::checkpoint,
            entry.name, " has the impossible shape ", shape_string(entry.shape));
  std::vector<Box> boxes;
  for (const json& part : fields.at("parts")) {
    entry.parts.push_back(parse_part(part));
    boxes.push_back(entry.parts.back().box);
  }
  const std::string defect = cover_defect(entry.shape, boxes);
  require(defect.empty(), ExitCode::checkpoint, entry.name, " (", entry.role, "): ", defect);
  for (const auto& part : entry.parts) {
    const auto file = files.find(part.file);
    require(file != files.end() && part.offset >= 0 &&
                part.bytes == element_count(part.box.size) * size_of(entry.dtype) &&
                part.bytes <= file->second && part.offset <= file->second - part.bytes,
            ExitCode::checkpoint, entry.name, " (", entry.role, "): box ", to_string(part.box),
            " is not in file ", part.file);
  }
  std::sort(entry.parts.begin(), entry.parts.end(),
            [](const auto& a, const auto& b) { return a.box.offset < b.box.offset; });
  return entry;
}

Manifest parse(const json& fields) {
  Manifest manifest;
  require(fields.at("format") == "phalanx checkpoint", ExitCode::checkpoint, "its format is ",
          fields.at("format").dump(), ", not \"phalanx checkpoint\"");
  const auto version = fields.at("format_version").get<int64_t>();
  require(version == Manifest::format_version, ExitCode::checkpoint, "format version ", version,
          " is not the one that this program reads, ", Manifest::format_version);
  manifest.run = parse_run(fields.at("run"));
  manifest.created = fields.at("created").get<int64_t>();
  require(manifest.created >= 0 && manifest.created <= Manifest::latest_creation,
          ExitCode::checkpoint, "it says that it was created ", manifest.created,
          " nanoseconds after 1970");
  manifest.files = fields.at("files").get<std::map<std::string, int64_t>>();
  for (const auto& [file, bytes] : manifest.files)
    require(is_plain_name(file) && bytes >= 0, ExitCode::checkpoint, "'", file,
            "' is no name of a file in the checkpoint's folder");
  int64_t in_files = 0, in_tensors = 0;
  for (const auto& [file, bytes] : manifest.files) add(in_files, bytes, "its files");
  std::set<TensorKey> seen;
  for (const json& entry : fields.at("tensors")) {
    manifest.entries.push_back(parse_entry(entry, manifest.files));
    const auto& last = manifest.entries.back();
    add(in_tensors, element_count(last.shape) * size_of(last.dtype), "its tensors");
    require(seen.insert(key(last)).second, ExitCode::checkpoint, last.name, " (", last.role,
            ") is listed twice");
  }
  return manifest;
}

}  // namespace

std::map<TensorKey, const ManifestEntry*> by_key(const Manifest& manifest) {
  std::map<TensorKey, const ManifestEntry*> entries;
  for (const auto& entry : manifest.entries) entries[key(entry)] = &entry;
  return entries;
}

void sort_entries(Manifest& manifest, const std::string& path) {
  auto& entries = manifest.entries;
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return key(a) < key(b); });
  const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                        [](auto& a, auto& b) { return key(a) == key(b); });
  if (twice == entries.end()) return;
  std::set<std::string> files;
  for (auto each = twice; each != entries.end() && key(*each) == key(*twice); ++each)
    for (const auto& part : each->parts) files.insert(part.file);
  fail(ExitCode::checkpoint, path, " holds ", twice->name, " (", twice->role, ") twice (in ",
       join(std::vector(files.begin(), files.end())),
       "), perhaps with and without a prefix such as \"transformer.\": remove one of them");
}

std::string to_json(const Manifest& manifest) {
  json tensors = json::array();
  for (const auto& entry : manifest.entries) {
    json parts = json::array();
    for (const auto& part : entry.parts) {
      require(part.hash && part.strides.empty(), ExitCode::checkpoint, entry.name, " (", entry.role,
              ") ", to_string(part.box), " has no hash or is not row-major: not in our format");
      parts.push_back({{"offset", part.box.offset},
                       {"size", part.box.size},
                       {"file", part.file},
                       {"file_offset", part.offset},
                       {"bytes", part.bytes},
                       {"xxh3_128", to_hex(*part.hash)}});
    }
    tensors.push_back({{"name", entry.name},
                       {"role", entry.role},
                       {"dtype", name(entry.dtype)},
                       {"shape", entry.shape},
                       {"parts", parts}});
  }
  return json{{"format", "phalanx checkpoint"}, {"format_version", Manifest::format_version},
              {"created", manifest.created},    {"run", to_json(manifest.run)},
              {"files", manifest.files},        {"tensors", tensors}}
             .dump(1) +
         "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  try {
    return parse(json::parse(text));
  } catch (const std::exception& error) {  // of the parser, or one of ours
    fail(ExitCode::checkpoint, path, " cannot be used: ", error.what());
  }
}

std::string read_manifest_text(const Storage& storage, const std::string& folder) {
  const std::string name = in_folder(folder, "manifest.json"), path = storage.path(name);
  const auto items = storage.list(folder);
  require(!items.empty(), ExitCode::checkpoint, "there is no checkpoint ", storage.path(folder));
  require(std::any_of(items.begin(), items.end(),
                      [](const auto& item) { return item.name == "manifest.json"; }),
          ExitCode::checkpoint, storage.path(folder),
          " is no checkpoint: it has no manifest.json (a checkpoint is a folder step-N)");
  for (const auto& item : items)
    require(!item.is_link || !item.name.starts_with("manifest.json"), ExitCode::checkpoint,
            storage.path(in_folder(folder, item.name)),
            " is a symbolic link, which is not followed: copy the file here");
  require(holds(items, "manifest.json.xxh128", false), ExitCode::checkpoint, storage.path(folder),
          " is a broken checkpoint: it has no manifest.json.xxh128, the hash of its manifest.json; "
          "name another one");
  const std::string text = read_text(storage, name);
  const std::string line = read_text(storage, name + ".xxh128");
  require(line == manifest_hash_line(text), ExitCode::checkpoint, path,
          " is damaged: its hash is not the one in manifest.json.xxh128");
  return text;
}

std::string manifest_hash_line(const std::string& text) {
  return to_hex(hash_of(text.data(), static_cast<int64_t>(text.size()))) + "  manifest.json\n";
}

Manifest read_manifest(const Storage& storage, const std::string& folder) {
  return parse_manifest(read_manifest_text(storage, folder),
                        storage.path(in_folder(folder, "manifest.json")));
}

Manifest read_manifest(const std::string& path) { return read_manifest(*open_storage(path), ""); }

}  // namespace phalanx
