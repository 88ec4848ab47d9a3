#include "phalanx/checkpoint/s3_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/s3_storage.h"
#include "phalanx/checkpoint/s3_xml.h"

namespace phalanx {
namespace {

constexpr int64_t head_bytes = 64 << 10;
constexpr size_t at_once = 4;  // requests of one file: a server gives each only so much

std::string header(const S3Response& response, const std::string& name) {
  const auto place = response.headers.find(name);
  return place == response.headers.end() ? "" : place->second;
}

// The whole object's size, from "bytes 0-65535/1234567", whose first two numbers are also compared;
// or from a 200, which some servers answer to a range that is everything.
int64_t total_bytes(const S3Request& request, const S3Response& response, const std::string& path) {
  if (response.status == 200 && request.range_begin == 0) return response.out_bytes;
  const std::string range = header(response, "content-range");
  int64_t total = -1;
  const size_t slash = range.find('/');
  if (slash != std::string::npos)
    std::from_chars(range.data() + slash + 1, range.data() + range.size(), total);
  const std::string expected =
      text("bytes ", request.range_begin, "-", request.range_begin + response.out_bytes - 1, "/");
  require(response.status == 206 && total >= 0 && range.starts_with(expected), ExitCode::checkpoint,
          "cannot read ", path, ": the server answered bytes ", request.range_begin,
          " and on with status ", response.status, " and Content-Range '", range,
          "'; it must serve ranges (206)");
  return total;
}

}  // namespace

S3Reader::S3Reader(std::shared_ptr<const S3Client> client, std::string key, std::string path)
    : client_(std::move(client)), key_(std::move(key)), path_(std::move(path)) {
  head_.resize(head_bytes);
  S3Request request{.key = key_};
  request.range_bytes = head_bytes;
  request.out = head_.data();
  const S3Response response = client_->perform(request);
  if (response.status == 416 && response.trouble.empty()) {  // of nothing, no range can be had
    head_.clear();
    return;
  }
  if (!response.good()) client_->fail_request(request, response, "cannot read " + path_);
  size_ = response.out_bytes == 0 ? 0 : total_bytes(request, response, path_);
  require(response.out_bytes == std::min(size_, head_bytes), ExitCode::checkpoint, "cannot read ",
          path_, ": the server sent ", response.out_bytes, " of its first ",
          std::min(size_, head_bytes), " bytes");
  head_.resize(response.out_bytes);
  head_.shrink_to_fit();
}

void S3Reader::read_piece(char* out, int64_t bytes, int64_t offset) const {
  S3Request request{.key = key_};
  request.range_begin = offset;
  request.range_bytes = bytes;
  request.out = out;
  const S3Response response = client_->require_good(request, "cannot read " + path_);
  require(response.out_bytes == bytes, ExitCode::checkpoint, "cannot read ", path_,
          ": the server sent ", response.out_bytes, " of the ", bytes, " bytes from ", offset);
  const int64_t total = total_bytes(request, response, path_);
  require(total == size_, ExitCode::checkpoint, "cannot read ", path_, ": it had ", size_,
          " bytes when it was opened and has ", total, " now; is something else writing there?");
}

void S3Reader::read(void* out, int64_t bytes, int64_t offset) const {
  require(bytes >= 0 && offset >= 0 && offset <= size_ && bytes <= size_ - offset,
          ExitCode::checkpoint, path_, " ends at byte ", size_, ", ", offset + bytes,
          " are needed: the file was cut");
  char* to = static_cast<char*>(out);
  if (offset + bytes <= static_cast<int64_t>(head_.size())) {
    if (bytes > 0) std::memcpy(to, head_.data() + offset, bytes);
    return;
  }
  std::deque<std::future<void>> reading;  // each ends before this function does
  for (int64_t done = 0; done < bytes; done += S3Storage::part_bytes) {
    const int64_t count = std::min(bytes - done, S3Storage::part_bytes);
    if (bytes <= S3Storage::part_bytes) return read_piece(to, count, offset);
    if (reading.size() == at_once) {
      reading.front().get();
      reading.pop_front();
    }
    reading.push_back(
        std::async(std::launch::async, [=, this] { read_piece(to + done, count, offset + done); }));
  }
  for (auto& piece : reading) piece.get();
}

S3Writer::S3Writer(std::shared_ptr<const S3Client> client, std::string key, std::string path)
    : client_(std::move(client)), key_(std::move(key)), path_(std::move(path)) {}

S3Writer::~S3Writer() {
  sending_.clear();  // waits for them: a part that comes after the DELETE would stay
  if (upload_.empty()) return;
  S3Request request{.method = "DELETE", .key = key_, .query = {{"uploadId", upload_}}};
  request.attempts = 1;
  client_->perform(request);  // if that fails too, the next start gives it up
}

void S3Writer::write(const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes;) {
    const int64_t room = S3Storage::part_bytes - static_cast<int64_t>(buffer_.size());
    if (room == 0) {
      send_part();
      continue;
    }
    const int64_t count = std::min(bytes - done, room);
    if (buffer_.empty() && bytes_ > 0) buffer_.reserve(S3Storage::part_bytes);
    buffer_.insert(buffer_.end(), from + done, from + done + count);
    done += count;
  }
  bytes_ += bytes;
}

void S3Writer::begin_upload() {
  const S3Request request{
      .method = "POST", .key = key_, .query = {{"uploads", ""}}, .body = "", .body_bytes = 0};
  const S3Response response = client_->require_good(request, doing());
  upload_ = read_s3_field(response.body, "InitiateMultipartUploadResult", "UploadId");
  require(!upload_.empty(), ExitCode::checkpoint, doing(),
          ": the server began a multipart upload without an id");
}

void S3Writer::send_part() {
  if (upload_.empty()) begin_upload();
  if (sending_.size() == at_once) await_part();
  const auto number = static_cast<int64_t>(tags_.size() + sending_.size()) + 1;
  require(number <= S3Storage::most_parts, ExitCode::checkpoint, doing(),
          ": an object has at most ", S3Storage::most_parts, " parts of ", S3Storage::part_bytes,
          " bytes; save on more ranks, so that each writes less");
  sending_.push_back(std::async(
      std::launch::async, [this, number, part = std::exchange(buffer_, {})]() -> std::string {
        const S3Request request{.method = "PUT",
                                .key = key_,
                                .query = {{"partNumber", text(number)}, {"uploadId", upload_}},
                                .body = part.data(),
                                .body_bytes = static_cast<int64_t>(part.size())};
        const S3Response response = client_->require_good(request, doing());
        const auto tag = response.headers.find("etag");
        require(tag != response.headers.end(), ExitCode::checkpoint, doing(),
                ": the server took part ", number, " and gave no ETag for it");
        return tag->second;
      }));
}

void S3Writer::await_part() {
  tags_.push_back(sending_.front().get());
  sending_.pop_front();
}

// A 200 may carry an error. And an attempt whose answer was lost may have done it: then the upload
// is unknown and the object is there.
void S3Writer::complete_upload() {
  std::string list = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < tags_.size(); ++i)
    list += text("<Part><PartNumber>", i + 1, "</PartNumber><ETag>", tags_[i], "</ETag></Part>");
  list += "</CompleteMultipartUpload>";
  const S3Request request{.method = "POST",
                          .key = key_,
                          .query = {{"uploadId", upload_}},
                          .body = list.data(),
                          .body_bytes = static_cast<int64_t>(list.size())};
  const S3Response response = client_->perform(request);
  const bool done = response.good() && response.code().empty();
  const bool done_before = response.code() == "NoSuchUpload" && response.attempts > 1 &&
                           S3Reader(client_, key_, path_).size() == bytes_;
  if (!done && !done_before) client_->fail_request(request, response, doing());
  upload_.clear();
}

void S3Writer::finish() {
  if (!upload_.empty()) {
    if (!buffer_.empty()) send_part();
    while (!sending_.empty()) await_part();
    complete_upload();
    return;
  }
  const S3Request request{.method = "PUT",
                          .key = key_,
                          .body = buffer_.empty() ? "" : buffer_.data(),
                          .body_bytes = static_cast<int64_t>(buffer_.size())};
  client_->require_good(request, doing());
}

}  // namespace phalanx
