#include <ATen/ops/from_blob.h>

#include "phalanx/base/error.h"
#include "phalanx/comm/memory.h"
#include "phalanx/comm/shared_group.h"

// Symmetric segments and windows of a group.
namespace phalanx::shared {

at::Tensor Group::allocate(int64_t bytes, bool window) {
  require(bytes >= 0, ExitCode::usage, "cannot allocate ", bytes, " bytes in group ", name_);
  check_aborted();
  if (!freed_.empty()) sweep_segments();
  const uint32_t id = uint32_t(segments_.size());
  require(id < uint32_t(max_segments), ExitCode::usage, "group ", name_, " has allocated ", id,
          " buffers; allocate once and reuse them");
  const int64_t mapped = round_up(std::max<int64_t>(1, window ? bytes * size_ : bytes));
  const uint64_t tag = hash_name(text(window ? "window " : "buffer ", id, " of ", key_));
  const auto end = std::chrono::steady_clock::now() + deadline_;
  const std::string what =
      window ? text("allocating a window of ", bytes, " bytes a rank in group ", name_)
             : text("allocating ", bytes, " bytes in group ", name_);
  auto& peers = host_->peers();
  const auto receive = [&](int other) {
    return Mapping(peers.receive(world_ranks_[other], tag, mapped, end, what,
                                 [&] {
                                   check_aborted();
                                   const auto closed =
                                       control(other).closed.load(std::memory_order_acquire);
                                   return closed ? text("rank ", world_ranks_[other],
                                                        " has finished and left group ", name_)
                                                 : std::string();
                                 }),
                   mapped);
  };
  Segment made{.window = window, .bytes = bytes};
  if (!window || rank_ == 0) {
    Descriptor own = make_segment("phalanx " + name_, mapped);
    for (int other = 0; other < size_; ++other)
      if (other != rank_) peers.send(world_ranks_[other], tag, own, mapped);
    if (window) made.mappings.emplace_back(own, mapped);
    for (int other = 0; !window && other < size_; ++other)
      made.mappings.push_back(other == rank_ ? Mapping(own, mapped) : receive(other));
  } else {
    made.mappings.push_back(receive(0));
  }
  char* base = window ? made.mappings[0].data() : made.mappings[rank_].data();
  segments_.push_back(std::move(made));
  by_address_[base] = id;
  charge_segment(window ? SegmentUse::window : SegmentUse::buffer, bytes);
  return at::from_blob(
      base, {window ? bytes * size_ : bytes},
      [group = shared_from_this(), id](void*) { group->free_segment(id); }, at::kByte);
}

Group::Found Group::find(const void* data, int64_t bytes) {
  auto* at = static_cast<char*>(const_cast<void*>(data));
  auto next = by_address_.upper_bound(at);
  if (next == by_address_.begin()) return {};
  const auto& [base, id] = *--next;
  const Segment& found = segments_[id];
  const int64_t total = found.window ? found.bytes * size_ : found.bytes;
  if (at + bytes > base + total) return {};
  return {id, at - base};
}

void Group::free_segment(uint32_t id) {
  Segment& segment = segments_[id];
  by_address_.erase(segment.window ? segment.mappings[0].data() : segment.part(rank_));
  charge_segment(segment.window ? SegmentUse::window : SegmentUse::buffer, -segment.bytes);
  control(rank_).segments[id].store(freed_segment, std::memory_order_release);
  freed_.insert(id);
  sweep_segments();
}

void Group::sweep_segments() {
  // Peers may read this rank's part until they have freed theirs.
  std::erase_if(freed_, [&](uint32_t id) {
    for (int other = 0; other < size_; ++other)
      if (control(other).segments[id].load(std::memory_order_acquire) != freed_segment)
        return false;
    segments_[id].mappings.clear();
    return true;
  });
}

void Group::release_window(uint32_t id) {
  Segment& window = segments_[id];
  if (--window.held > 0) return;
  auto& released = control(rank_).segments[id];
  if (released.load(std::memory_order_relaxed) == freed_segment) return;
  released.store(window.uses, std::memory_order_release);
  wake_all();
}

bool Group::window_free(uint32_t id, uint32_t use, std::vector<int>* holders) {
  bool free = true;
  for (int other = 0; other < size_; ++other)
    if (other != rank_ && control(other).segments[id].load(std::memory_order_acquire) < use) {
      free = false;
      if (holders) holders->push_back(other);
    }
  return free;
}

}  // namespace phalanx::shared
