#include "phalanx/device/recording.h"

#include <ATen/core/function_schema.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

RecordingDevice* active = nullptr;

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
  if (!active) return nullptr;
  const auto schema = function.operator_schema();
  if (!schema) return nullptr;
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size() && i < schema->arguments().size(); ++i) {
    const auto* alias = schema->arguments()[i].alias_info();
    if (alias && !alias->isWrite()) continue;  // a view: reads nothing yet
    if (inputs[i].isTensor())
      active->on_operator(inputs[i].toTensor(), alias != nullptr, function.name());
    else if (inputs[i].isTensorList())
      for (const at::Tensor& tensor : inputs[i].toTensorVector())
        active->on_operator(tensor, alias != nullptr, function.name());
  }
  return nullptr;
}

struct Span {
  char* begin = nullptr;
  int64_t bytes = 0;
};

Span memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return {};
  if (tensor.storage().nbytes() == 0 || !tensor.storage().data()) return {};
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())),
          (last + 1) * tensor.element_size()};
}

}  // namespace

RecordingDevice::RecordingDevice(Side side) : side_(side) {
  require(active == nullptr, ExitCode::usage, "a recording device is in use; one at a time");
  active = this;
  stream("compute");
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

RecordingDevice::~RecordingDevice() {
  at::removeCallback(callback_);
  active = nullptr;
}

Stream RecordingDevice::stream(std::string_view name) {
  for (size_t i = 0; i < queues_.size(); ++i)
    if (queues_[i].name == name) return {static_cast<int>(i)};
  for (auto& queue : queues_) queue.clock.push_back(0);
  queues_.push_back({std::string(name), Clock(queues_.size() + 1, 0), {}, 0});
  queues_.back().clock.back() = 1;
  return {static_cast<int>(queues_.size()) - 1};
}

int RecordingDevice::touch(const at::Tensor& tensor, int stream, bool write,
                           std::string_view what) {
  const Span span = memory_of(tensor);
  int count = 0;
  if (buffers_.empty() || span.bytes == 0) return 0;
  auto next = buffers_.upper_bound(span.begin);
  if (next != buffers_.begin()) --next;
  for (; next != buffers_.end() && next->first < span.begin + span.bytes; ++next)
    if (next->first + next->second.bytes > span.begin) {
      touch(next->second, stream, write, what);
      ++count;
    }
  return count;
}

void RecordingDevice::know(const at::Tensor& tensor, std::string_view name, int stream) {
  const Span span = memory_of(tensor);
  const Use created{stream, queues_[stream].clock[stream], "its allocation"};
  buffers_.insert_or_assign(span.begin, Buffer{std::string(name), span.bytes, false, created, {}});
}

void RecordingDevice::touch(Buffer& buffer, int stream, bool write, std::string_view what) {
  const Clock& now = queues_[stream].clock;
  if (buffer.freed)
    races_.push_back(text(buffer.name, ": ", what, " on stream ", queues_[stream].name,
                          " comes after ", buffer.write.what, " on stream ",
                          queues_[buffer.write.stream].name));
  auto check = [&](const Use& earlier, const char* kind) {
    if (earlier.stream < 0 || earlier.stream == stream || now[earlier.stream] >= earlier.time)
      return;
    races_.push_back(text(buffer.name, ": ", what, " on stream ", queues_[stream].name,
                          " is not ordered after ", kind, " ", earlier.what, " on stream ",
                          queues_[earlier.stream].name));
  };
  check(buffer.write, "the write by");
  const Use use{stream, now[stream], std::string(what)};
  if (!write) {
    buffer.reads[stream] = use;
    return;
  }
  for (const auto& [reader, read] : buffer.reads) check(read, "the read by");
  buffer.reads.clear();
  buffer.write = use;
}

void RecordingDevice::on_operator(const at::Tensor& tensor, bool write, const char* name) {
  if (inside_launch_ || std::this_thread::get_id() != thread_) return;
  operator_accesses_ += touch(tensor, compute().index, write, name);
}

void RecordingDevice::enqueue(int stream, std::function<void()> work) {
  auto run_it = [this, work = std::move(work)] {
    const bool before = std::exchange(inside_launch_, true);
    work();
    inside_launch_ = before;
  };
  if (stream == compute().index || side_ == Side::early)
    run_it();
  else
    queues_[stream].waiting.push_back(run_it);
}

void RecordingDevice::launch(Stream stream, std::string_view name, std::span<const Access> accesses,
                             std::function<void()> work) {
  for (const Access& access : accesses) {
    if (!access.buffer.defined() || access.buffer.numel() == 0) continue;
    if (touch(access.buffer, stream.index, access.write, name) > 0) continue;
    know(access.buffer, name, stream.index);
    touch(access.buffer, stream.index, access.write, name);
  }
  enqueue(stream.index, std::move(work));
}

Event RecordingDevice::record(Stream stream) {
  Queue& queue = queues_[stream.index];
  events_.push_back({queue.clock, queue.done + static_cast<int64_t>(queue.waiting.size())});
  ++queue.clock[stream.index];
  return {stream.index, static_cast<int64_t>(events_.size()) - 1};
}

void RecordingDevice::wait(Stream stream, const Event& event) {
  if (event.stream < 0) return;
  const Recorded recorded = events_[event.position];
  Clock& clock = queues_[stream.index].clock;
  for (size_t i = 0; i < recorded.clock.size(); ++i)
    clock[i] = std::max(clock[i], recorded.clock[i]);
  auto catch_up = [this, from = event.stream, upto = recorded.upto] { run(from, upto); };
  if (stream.index == compute().index || side_ == Side::early)
    catch_up();
  else
    queues_[stream.index].waiting.push_back(catch_up);
}

bool RecordingDevice::ordered(Stream stream, const Event& event) const {
  if (event.stream < 0) return true;
  const Clock& now = queues_[stream.index].clock;
  const Clock& then = events_[event.position].clock;
  for (size_t i = 0; i < then.size(); ++i)
    if (now[i] < then[i]) return false;
  return true;
}

void RecordingDevice::run(int stream, int64_t upto) {
  Queue& queue = queues_[stream];
  while (queue.done < upto && !queue.waiting.empty()) {
    auto work = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    ++queue.done;
    work();
  }
}

at::Tensor RecordingDevice::allocate(Stream stream, int64_t bytes, std::string_view name) {
  at::Tensor buffer = at::empty({bytes}, at::kByte);
  poison_memory(buffer);
  know(buffer, name, stream.index);
  return buffer;
}

void RecordingDevice::free(Stream stream, at::Tensor buffer) {
  touch(buffer, stream.index, true, "free");
  if (const auto known = buffers_.find(memory_of(buffer).begin); known != buffers_.end())
    known->second.freed = true;
  freed_.push_back(buffer);
  enqueue(stream.index, [buffer] { poison_memory(buffer); });
}

}  // namespace phalanx
