#include <algorithm>
#include <cstring>

#include "phalanx/base/error.h"
#include "phalanx/comm/shared_calls.h"

// Messages between two ranks. A sender publishes a Mail in its own block; the receiver of that tag
// answers in its own. Large private tensors travel in chunks once the receiver has answered, so the
// order in which messages of different tags are received is free.
namespace phalanx::shared {
namespace {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

char* pair_block(Group& group, int owner, int other) {
  return group.control_data(owner) + mail_offset + other * pair_bytes;
}
Mail& mail_of(Group& group, int from, int to, uint64_t number) {
  return reinterpret_cast<Mail*>(pair_block(group, from, to))[number % mail_count];
}
MailAnswer& answer_of(Group& group, int from, int to, uint64_t number) {
  char* block = pair_block(group, to, from) + answer_offset;
  return reinterpret_cast<MailAnswer*>(block)[number % mail_count];
}

class Message : public SharedCall {
 public:
  Message(std::shared_ptr<Group> group, at::Tensor tensor, int peer, int tag, const Call& call)
      : SharedCall(std::move(group), call),
        tensor_(std::move(tensor)),
        peer_(peer),
        tag_(tag),
        unit_(call.unit) {}
  Missing missing() const override { return {{peer_}}; }

 protected:
  char* data() { return static_cast<char*>(tensor_.mutable_data_ptr()); }
  int64_t bytes() const { return int64_t(tensor_.nbytes()); }
  std::string describe_as(const char* verb) const {
    return text(verb, " rank ", peer_, ", tag ", tag_, ", ", tensor_.numel(), " ",
                c10::toString(tensor_.scalar_type()), ", ", purpose_, " of ", unit_);
  }
  at::Tensor tensor_;
  int peer_, tag_;
  uint64_t number_ = 0;
  std::string unit_;
};

class Send : public Message {
 public:
  using Message::Message;

  void start(const Call& call) {
    auto& group = *group_;
    const int self = group.rank();
    number_ = group.sent[peer_] + 1;
    if (number_ > uint64_t(mail_count)) {
      const uint64_t before = number_ - mail_count;
      auto& answer = answer_of(group, self, peer_, before);
      group.wait_until([&] { return answer.finished.load(memory_order_acquire) >= before; },
                       [&] { return missing(); },
                       [&] {
                         return text(describe(), ": ", mail_count,
                                     " messages to it are not received yet");
                       },
                       deadline_);
    }
    group.sent[peer_] = number_;
    record_ = group.history.begin(group.name(), number_, "send", call.unit, call.purpose, bytes());
    Mail& mail = mail_of(group, self, peer_, number_);
    mail.tag = tag_;
    mail.dtype = int8_t(tensor_.scalar_type());
    mail.bytes = bytes();
    mail.produced.store(0, memory_order_relaxed);
    if (Group::Found found = group.find(data(), bytes()); found && bytes() > 0) {
      mail.place = Place::segment;
      mail.segment = found.id;
      mail.offset = found.offset;
    } else if (bytes() <= mail_inline_bytes) {
      mail.place = Place::ring;
      mail.offset = mail_offset + peer_ * pair_bytes + mail_inline_offset +
                    int64_t(number_ % mail_count) * mail_inline_bytes;
      if (bytes()) std::memcpy(group.control_data(self) + mail.offset, data(), bytes());
    } else {
      mail.place = Place::chunks;
      chunks_ = (bytes() + mail_chunk_bytes - 1) / mail_chunk_bytes;
    }
    place_ = mail.place;
    mail.published.store(number_, memory_order_release);
    group.wake_all();
    finish(0);
    group.add(shared_from_this());
  }

  bool advance() override {
    if (staged_ == chunks_) return false;
    auto& group = *group_;
    const int self = group.rank();
    auto& answer = answer_of(group, self, peer_, number_);
    if (answer.finished.load(memory_order_acquire) >= number_) {  // its receiver has dropped it
      staged_ = chunks_;
      return true;
    }
    if (answer.matched.load(memory_order_acquire) != number_) return false;
    bool moved = false;
    while (staged_ < chunks_ &&
           (staged_ < chunk_depth ||
            answer.consumed.load(memory_order_acquire) > staged_ - chunk_depth)) {
      char* to = pair_block(group, self, peer_) + mail_chunk_offset +
                 staged_ % chunk_depth * mail_chunk_bytes;
      const int64_t begin = staged_ * mail_chunk_bytes;
      std::memcpy(to, data() + begin, std::min(mail_chunk_bytes, bytes() - begin));
      ++staged_;
      mail_of(group, self, peer_, number_).produced.store(uint32_t(staged_), memory_order_release);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      group.wake(peer_);
      moved = true;
    }
    return moved;
  }
  bool owes_peers() const override { return staged_ < chunks_; }
  std::string describe() const override { return describe_as("send to"); }

  void wait_inputs() override {
    if (place_ == Place::ring) return;
    auto& answer = answer_of(*group_, group_->rank(), peer_, number_);
    auto ready = [&] {
      if (place_ == Place::chunks) return advance(), staged_ == chunks_;
      return answer.finished.load(memory_order_acquire) >= number_;
    };
    group_->wait_until(
        ready, [&] { return missing(); }, [&] { return "waiting for the reader of " + describe(); },
        deadline_);
  }

 private:
  Place place_ = Place::nothing;
  int64_t chunks_ = 0, staged_ = 0;
};

class Receive : public Message {
 public:
  using Message::Message;

  void start(const Call& call) {
    order_ = ++group_->receives;
    record_ =
        group_->history.begin(group_->name(), order_, "receive", call.unit, call.purpose, bytes());
    group_->unmatched.push_back({peer_, tag_, order_});
    group_->add(shared_from_this());
  }

  ~Receive() override {
    if (number_ == 0) forget_order();
    if (number_ && !complete_) answer();
  }

  bool advance() override {
    if (complete_ || (number_ == 0 && !match())) return false;
    auto& group = *group_;
    Mail& mail = mail_of(group, peer_, group.rank(), number_);
    if (mail.place != Place::chunks) {
      if (bytes()) {
        const Location from{mail.place, mail.segment, mail.offset, -1};
        std::memcpy(data(), group.input_of(peer_, from), bytes());
      }
      return complete_message();
    }
    bool moved = false;
    while (read_ < mail.produced.load(memory_order_acquire)) {
      const char* from = pair_block(group, peer_, group.rank()) + mail_chunk_offset +
                         read_ % chunk_depth * mail_chunk_bytes;
      const int64_t begin = read_ * mail_chunk_bytes;
      std::memcpy(data() + begin, from, std::min(mail_chunk_bytes, bytes() - begin));
      ++read_;
      answer_of(group, peer_, group.rank(), number_)
          .consumed.store(uint32_t(read_), memory_order_release);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      group.wake(peer_);
      moved = true;
    }
    return read_ * mail_chunk_bytes >= bytes() ? complete_message() : moved;
  }
  std::string describe() const override { return describe_as("receive from"); }
  void wait_inputs() override { wait(); }

 private:
  // Messages of one tag arrive in the order in which they were sent and asked for.
  bool match() {
    auto& group = *group_;
    for (const auto& other : group.unmatched)
      if (other.peer == peer_ && other.tag == tag_ && other.order < order_) return false;
    auto& seen = group.taken[peer_];
    for (uint64_t number = seen.first; number < seen.first + mail_count; ++number) {
      Mail& mail = mail_of(group, peer_, group.rank(), number);
      if (mail.published.load(memory_order_acquire) != number) return false;
      if (mail.tag != tag_ || seen.numbers.contains(number)) continue;
      if (mail.bytes != bytes() || mail.dtype != int8_t(tensor_.scalar_type()))
        group.fail_group(text("ranks of group ", group.name(), " disagree: rank ", peer_, " sent ",
                              mail.bytes, " bytes of ",
                              c10::toString(static_cast<at::ScalarType>(mail.dtype)), "; rank ",
                              group.rank(), " issued ", describe(), " (", bytes(), " bytes)"));
      if (mail.place == Place::chunks) {
        if (seen.chunked) return false;  // one at a time: the pair has one set of chunks
        seen.chunked = number;
      }
      number_ = number;
      seen.numbers.insert(number);
      while (seen.numbers.erase(seen.first)) ++seen.first;
      forget_order();
      auto& answer = answer_of(group, peer_, group.rank(), number);
      answer.consumed.store(0, memory_order_relaxed);
      answer.matched.store(number, memory_order_release);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      group.wake(peer_);
      return true;
    }
    return false;
  }

  void forget_order() {
    std::erase_if(group_->unmatched, [this](const auto& other) { return other.order == order_; });
  }

  void answer() {
    auto& group = *group_;
    auto& answer = answer_of(group, peer_, group.rank(), number_);
    answer.consumed.store(all_done, memory_order_release);
    answer.finished.store(number_, memory_order_release);
    if (group.taken[peer_].chunked == number_) group.taken[peer_].chunked = 0;
    group.wake_all();
  }

  bool complete_message() {
    answer();
    finish(bytes());
    return true;
  }

  uint64_t order_ = 0;
  int64_t read_ = 0;
};

}  // namespace

std::shared_ptr<Pending> send(std::shared_ptr<Group> group, at::Tensor tensor, int peer, int tag,
                              const Call& call) {
  auto made = std::make_shared<Send>(std::move(group), std::move(tensor), peer, tag, call);
  made->start(call);
  return made;
}

std::shared_ptr<Pending> receive(std::shared_ptr<Group> group, at::Tensor tensor, int peer, int tag,
                                 const Call& call) {
  auto made = std::make_shared<Receive>(std::move(group), std::move(tensor), peer, tag, call);
  made->start(call);
  return made;
}

}  // namespace phalanx::shared
