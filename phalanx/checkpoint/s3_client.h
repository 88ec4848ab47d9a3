#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "phalanx/checkpoint/s3_settings.h"

namespace phalanx {

/// How long a request to an S3 server may take and how often it is tried. A test of faults sets it
/// lower, before it opens the storage.
struct S3Patience {
  int attempts = 6;                            ///< of one request, with growing pauses between
  std::chrono::milliseconds first_pause{200};  ///< doubles, up to 8 s; half of it is random
  std::chrono::milliseconds connect{10'000};   ///< to reach the server
  std::chrono::seconds stalled{30};            ///< less than 1 KB/s for this long is a failure
  std::chrono::milliseconds attempt{90'000};   ///< one attempt, whatever its pace
  std::chrono::milliseconds total{120'000};    ///< no new attempt after this
};
void set_s3_patience(const S3Patience& patience);

struct S3Request {
  std::string method = "GET";
  std::string key;                           ///< as it is, not escaped; "" for the bucket itself
  std::map<std::string, std::string> query;  ///< not escaped
  const char* body = nullptr;                ///< of `body_bytes`, for PUT and POST
  int64_t body_bytes = 0;
  int64_t range_begin = 0, range_bytes = 0;  ///< GET of a part, if range_bytes > 0
  char* out = nullptr;                       ///< where the part goes; `range_bytes` have room
  int attempts = 0;                          ///< at most these; 0: S3Patience::attempts
};

struct S3Response {
  long status = 0;                             ///< of HTTP; 0 if no whole answer came
  std::string body;                            ///< unless it went to S3Request::out
  int64_t out_bytes = 0;                       ///< what went there
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string trouble;                         ///< what broke the connection; empty if nothing
  bool hopeless = false;  ///< such a trouble that another attempt would meet it too
  int attempts = 0;
  bool good() const { return trouble.empty() && status >= 200 && status < 300; }
  std::string code() const;        ///< "NoSuchKey", from the body
  bool server_in_trouble() const;  ///< as it says itself; later it may do what was asked
};

/// Signed requests to one bucket over connections that are kept. From several threads at once.
class S3Client {
 public:
  S3Client(S3Settings settings, std::string bucket);
  ~S3Client();
  const std::string& bucket() const { return bucket_; }

  /// The answer, after as many attempts as it took: lost connections, stalls, cut bodies and what
  /// servers answer in trouble (5xx, 429, a 200 with such an error in its body) are tried again.
  S3Response perform(const S3Request& request) const;
  /// The same; Error(checkpoint) if it is not good. `doing` begins the sentence: "cannot read x".
  S3Response require_good(const S3Request& request, std::string_view doing) const;
  /// The sentence about a request that failed: what, where, what the server said, what to do.
  [[noreturn]] void fail_request(const S3Request& request, const S3Response& response,
                                 std::string_view doing) const;

 private:
  struct Connections;
  class HeaderList;
  void configure(void* handle, const S3Request& request, HeaderList& headers) const;  // of curl
  S3Response attempt(const S3Request& request) const;
  std::string url(const S3Request& request) const;
  std::string advice(const S3Response& response) const;

  S3Settings settings_;
  std::string bucket_, base_;
  S3Patience patience_;
  std::unique_ptr<Connections> connections_;
};

}  // namespace phalanx
