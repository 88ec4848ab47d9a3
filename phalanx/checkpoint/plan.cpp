#include "phalanx/checkpoint/plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
namespace {

using nlohmann::json;

// A box that one or several ranks hold.
struct Held {
  struct Holder {
    int rank;
    size_t entry, part;
  };
  std::vector<Holder> holders;
};

using BoxKey = std::pair<std::vector<int64_t>, std::vector<int64_t>>;  // offset, size

struct Tensor {
  Dtype dtype;
  std::vector<int64_t> shape;
  int first_rank;
  std::map<BoxKey, Held> boxes;
};

using Tensors = std::map<TensorKey, Tensor>;

void add_entry(Tensors& tensors, int rank, size_t index, const json& fields) {
  const std::string tensor_name = fields[0].get<std::string>(), role = fields[1].get<std::string>();
  const auto dtype = static_cast<Dtype>(fields[2].get<int>());
  const auto shape = fields[3].get<std::vector<int64_t>>();
  auto [place, fresh] = tensors.try_emplace({tensor_name, role}, Tensor{dtype, shape, rank, {}});
  Tensor& tensor = place->second;
  require(tensor.dtype == dtype && tensor.shape == shape, ExitCode::checkpoint, "rank ",
          tensor.first_rank, " has ", tensor_name, " (", role, ") as ", name(tensor.dtype),
          shape_string(tensor.shape), ", rank ", rank, " as ", name(dtype), shape_string(shape));
  for (size_t part = 0; part < fields[4].size(); ++part) {
    const json& box = fields[4][part];
    if (element_count(box[1].get<std::vector<int64_t>>()) == 0) continue;
    tensor.boxes[{box[0].get<std::vector<int64_t>>(), box[1].get<std::vector<int64_t>>()}]
        .holders.push_back({rank, index, part});
  }
}

ManifestEntry manifest_entry(const TensorKey& key, const Tensor& tensor) {
  ManifestEntry entry{key.first, key.second, tensor.dtype, tensor.shape, {}};
  std::vector<Box> boxes;
  for (const auto& [box, held] : tensor.boxes) {
    ManifestEntry::Part part{};
    part.box = {box.first, box.second};
    part.bytes = element_count(box.second) * size_of(tensor.dtype);
    boxes.push_back(part.box);
    entry.parts.push_back(std::move(part));
  }
  const std::string defect = cover_defect(tensor.shape, boxes);
  require(defect.empty(), ExitCode::checkpoint, "the ranks do not hold ", key.first, " (",
          key.second, ") exactly once: ", defect);
  return entry;
}

// Boxes with one holder go to it; then the others, large ones first, to whoever has least so far.
void assign(std::vector<std::pair<PlannedPart, const Held*>>& items,
            const std::vector<ManifestEntry>& entries, int ranks) {
  std::vector<int64_t> load(ranks);
  std::vector<size_t> shared;
  const auto bytes = [&](size_t item) {
    return entries[items[item].first.entry].parts[items[item].first.part].bytes;
  };
  const auto give = [&](size_t item, const Held::Holder& holder) {
    PlannedPart& part = items[item].first;
    part.writer = holder.rank, part.own_entry = holder.entry, part.own_part = holder.part;
    load[holder.rank] += bytes(item);
  };
  for (size_t item = 0; item < items.size(); ++item) {
    const auto& holders = items[item].second->holders;
    if (holders.size() == 1)
      give(item, holders[0]);
    else
      shared.push_back(item);
  }
  std::stable_sort(shared.begin(), shared.end(),
                   [&](size_t a, size_t b) { return bytes(a) > bytes(b); });
  for (size_t item : shared) {
    const auto& holders = items[item].second->holders;
    give(item, *std::min_element(holders.begin(), holders.end(), [&](const auto& a, const auto& b) {
           return load[a.rank] < load[b.rank];
         }));
  }
}

}  // namespace

std::string describe_entries(std::span<const StateEntry> entries, bool boxes) {
  json described = json::array();
  for (const auto& entry : entries) {
    json told = json::array();
    for (const auto& part : entry.parts) {
      require(dtype_of(part.local) == entry.dtype && part.local.sizes() == part.box.size,
              ExitCode::checkpoint, "the tensor of ", entry.name, " (", entry.role, ") ",
              to_string(part.box), " has shape ", shape_string(part.local.sizes().vec()),
              " and type ", name(dtype_of(part.local)), ", wanted ", shape_string(part.box.size),
              " and ", name(entry.dtype));
      require(!part.local.is_neg(), ExitCode::checkpoint, entry.name, " (", entry.role,
              ") is a view with turned signs, whose bytes are not its values; keep its "
              "resolve_neg() instead");
      require(part.box.offset.size() == entry.global_shape.size(), ExitCode::checkpoint, entry.name,
              " (", entry.role, ") has ", entry.global_shape.size(), " dimensions, its box ",
              to_string(part.box), " has ", part.box.offset.size());
      if (boxes) told.push_back({part.box.offset, part.box.size});
    }
    described.push_back(
        {entry.name, entry.role, static_cast<int>(entry.dtype), entry.global_shape, told});
  }
  const std::vector<uint8_t> bytes = json::to_cbor(described);
  return {bytes.begin(), bytes.end()};
}

SavePlan plan_save(const std::vector<std::string>& descriptions) {
  Tensors tensors;
  const int ranks = static_cast<int>(descriptions.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const json entries = json::from_cbor(descriptions[rank]);
    for (size_t index = 0; index < entries.size(); ++index)
      add_entry(tensors, rank, index, entries[index]);
  }
  SavePlan plan;
  std::vector<std::pair<PlannedPart, const Held*>> items;
  for (const auto& [key, tensor] : tensors) {
    plan.entries.push_back(manifest_entry(key, tensor));
    size_t part = 0;
    for (const auto& [box, held] : tensor.boxes)
      items.push_back({{plan.entries.size() - 1, part++, 0, 0, 0}, &held});
  }
  assign(items, plan.entries, ranks);
  for (const auto& item : items) plan.parts.push_back(item.first);
  wide_first(plan);
  return plan;
}

void wide_first(SavePlan& plan) {
  std::stable_sort(plan.parts.begin(), plan.parts.end(), [&](const auto& a, const auto& b) {
    return size_of(plan.entries[a.entry].dtype) > size_of(plan.entries[b.entry].dtype);
  });
}

std::string state_file_name(int rank, int ranks) {
  char name[64];
  std::snprintf(name, sizeof(name), "state-%05d-of-%05d.safetensors", rank, ranks);
  return name;
}

}  // namespace phalanx
