#include "phalanx/checkpoint/s3_client.h"

#include <curl/curl.h>
#include <strings.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/s3_xml.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

S3Patience current_patience;

// As S3 wants it in paths and queries: all but these is %XX.
std::string escaped(std::string_view given, bool keep_slash) {
  static constexpr char digits[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : given)
    if ((c < 128 && std::isalnum(c)) ||
        std::string_view("-._~").find(c) != std::string_view::npos || (keep_slash && c == '/'))
      out += static_cast<char>(c);
    else
      out += {'%', digits[c >> 4], digits[c & 15]};
  return out;
}

// What a transfer fills.
struct Exchange {
  CURL* handle;
  const S3Request* request;
  S3Response response;
  bool too_long = false;
};

size_t on_body(char* data, size_t one, size_t count, void* user) {
  constexpr size_t longest_body = 64 << 20;  // of lists and errors
  Exchange& exchange = *static_cast<Exchange*>(user);
  S3Response& response = exchange.response;
  const size_t bytes = one * count;
  long status = 0;
  curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
  const bool to_out = exchange.request->out && status >= 200 && status < 300;
  exchange.too_long =
      to_out ? response.out_bytes + static_cast<int64_t>(bytes) > exchange.request->range_bytes
             : response.body.size() + bytes > longest_body;
  if (exchange.too_long) return 0;  // ends the transfer
  if (!to_out) {
    response.body.append(data, bytes);
  } else {
    std::memcpy(exchange.request->out + response.out_bytes, data, bytes);
    response.out_bytes += static_cast<int64_t>(bytes);
  }
  return bytes;
}

size_t on_header(char* data, size_t one, size_t count, void* user) {
  const std::string_view line(data, one * count);
  auto& headers = static_cast<Exchange*>(user)->response.headers;
  if (line.starts_with("HTTP/")) headers.clear();  // an earlier "100 Continue"
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    const size_t end = line.find_last_not_of(" \t\r\n");
    headers[name] = begin > end ? "" : std::string(line.substr(begin, end - begin + 1));
  }
  return line.size();
}

// A server that completes an upload begins its answer, 200, before it knows how that ends.
bool done(const S3Request& request, const S3Response& response) {
  return response.good() && (request.method != "POST" || response.code().empty());
}

bool worth_another_attempt(const S3Response& response) {
  if (response.hopeless) return false;
  if (!response.trouble.empty() || response.server_in_trouble()) return true;
  const std::string code = response.code();
  return response.status == 408 || code == "RequestTimeout" || code == "OperationAborted";
}

}  // namespace

void set_s3_patience(const S3Patience& patience) { current_patience = patience; }

std::string S3Response::code() const { return read_s3_error(body).code; }

bool S3Response::server_in_trouble() const {
  if (status >= 500 || status == 429) return true;
  const std::string said = code();
  return said == "InternalError" || said == "SlowDown" || said == "ServiceUnavailable";
}

class S3Client::HeaderList {
 public:
  ~HeaderList() { curl_slist_free_all(list_); }
  void add(const std::string& line) { list_ = curl_slist_append(list_, line.c_str()); }
  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

// Handles that are not in use; each keeps its connection open.
struct S3Client::Connections {
  std::mutex mutex;
  std::vector<CURL*> idle;

  ~Connections() {
    for (CURL* handle : idle) curl_easy_cleanup(handle);
  }
  CURL* take() {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        CURL* handle = idle.back();
        idle.pop_back();
        return handle;
      }
    }
    CURL* handle = curl_easy_init();
    require(handle != nullptr, ExitCode::environment, "libcurl gives no connection: out of memory");
    return handle;
  }
  void give_back(CURL* handle) {
    curl_easy_reset(handle);  // keeps the connection
    const std::lock_guard lock(mutex);
    idle.push_back(handle);
  }
};

S3Client::S3Client(S3Settings settings, std::string bucket)
    : settings_(std::move(settings)),
      bucket_(std::move(bucket)),
      patience_(current_patience),
      connections_(std::make_unique<Connections>()) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  require(started == CURLE_OK, ExitCode::environment,
          "libcurl does not start: ", curl_easy_strerror(started));
  if (!settings_.endpoint.empty())
    base_ = settings_.endpoint + "/" + bucket_;  // every server understands this form
  else if (bucket_.find('.') == std::string::npos)
    base_ = "https://" + bucket_ + ".s3." + settings_.region + ".amazonaws.com";
  else  // a dot does not fit the server's certificate
    base_ = "https://s3." + settings_.region + ".amazonaws.com/" + bucket_;
}

S3Client::~S3Client() = default;

// curl signs the query as it is given: sorted, every name with '='.
std::string S3Client::url(const S3Request& request) const {
  std::string url = base_;
  if (!request.key.empty() || settings_.endpoint.empty()) url += "/" + escaped(request.key, true);
  char separator = '?';
  for (const auto& [name, value] : request.query) {
    url += separator + escaped(name, false) + "=" + escaped(value, false);
    separator = '&';
  }
  return url;
}

void S3Client::configure(CURL* handle, const S3Request& request, HeaderList& headers) const {
  const auto set = [handle](CURLoption option, auto value) {
    curl_easy_setopt(handle, option, value);
  };
  set(CURLOPT_URL, url(request).c_str());
  set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_USERAGENT, "phalanx/" PHALANX_VERSION);
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_AWS_SIGV4, ("aws:amz:" + settings_.region + ":s3").c_str());
  set(CURLOPT_USERNAME, settings_.key.c_str());
  set(CURLOPT_PASSWORD, settings_.secret.c_str());
  // curl 7.88 signs this header's value and does not send one of its own.
  headers.add("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!settings_.session_token.empty())
    headers.add("x-amz-security-token: " + settings_.session_token);
  if (request.body) {
    headers.add("Content-Type: application/octet-stream");
    set(CURLOPT_POSTFIELDS, request.body);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body_bytes));
    // An empty "Expect:" would be signed but not sent, so we cannot switch it off.
    set(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
  }
  const std::string range =
      text(request.range_begin, "-", request.range_begin + request.range_bytes - 1);
  if (request.range_bytes > 0) set(CURLOPT_RANGE, range.c_str());
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(patience_.connect.count()));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(patience_.attempt.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, 1024L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(patience_.stalled.count()));
}

S3Response S3Client::attempt(const S3Request& request) const {
  CURL* handle = connections_->take();
  Exchange exchange{handle, &request, {}, false};
  HeaderList headers;
  configure(handle, request, headers);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  char reason[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, reason);
  const CURLcode code = curl_easy_perform(handle);
  S3Response& response = exchange.response;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &response.status);
  connections_->give_back(handle);
  response.hopeless = exchange.too_long || code == CURLE_URL_MALFORMAT ||
                      code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_PEER_FAILED_VERIFICATION;
  if (exchange.too_long)
    response.trouble =
        text("the server sent more than was asked for (status ", response.status, ")");
  else if (code != CURLE_OK)
    response.trouble = reason[0] ? reason : curl_easy_strerror(code);
  return std::move(response);
}

S3Response S3Client::perform(const S3Request& request) const {
  thread_local std::minstd_rand random{std::random_device{}()};
  const auto end = Clock::now() + patience_.total;
  const int most = request.attempts > 0 ? request.attempts : patience_.attempts;
  auto pause = patience_.first_pause;
  for (int attempts = 1;; ++attempts) {
    S3Response response = attempt(request);
    response.attempts = attempts;
    const auto half = std::chrono::milliseconds(pause.count() / 2);
    const auto wait = half + std::chrono::milliseconds(random() % (half.count() + 1));
    if (done(request, response) || !worth_another_attempt(response) || attempts >= most ||
        Clock::now() + wait > end)
      return response;
    std::this_thread::sleep_for(wait);  // all ranks at once would meet again: half is random
    pause = std::min(2 * pause, std::chrono::milliseconds(8000));
  }
}

S3Response S3Client::require_good(const S3Request& request, std::string_view doing) const {
  S3Response response = perform(request);
  if (!response.good()) fail_request(request, response, doing);
  return response;
}

std::string S3Client::advice(const S3Response& response) const {
  const std::string code = response.code();
  if (!response.trouble.empty())
    return "; is the endpoint right (AWS_ENDPOINT_URL_S3), and its server well?";
  if (code == "SignatureDoesNotMatch" || code == "InvalidAccessKeyId" || code == "ExpiredToken")
    return text("; check the secret of access key ", settings_.key, ", which is from ",
                settings_.source);
  if (response.status == 401 || response.status == 403)
    return text("; access key ", settings_.key, " from ", settings_.source,
                " may not do this in bucket ", bucket_);
  if (code == "NoSuchBucket")
    return text("; there is no bucket ", bucket_, ": create it, or correct the name");
  if (const auto region = response.headers.find("x-amz-bucket-region");
      region != response.headers.end() && region->second != settings_.region)
    return text("; set AWS_REGION to ", region->second, ", where the bucket is (it was ",
                settings_.region, ")");
  if (response.server_in_trouble()) return "; the server is in trouble: try again later";
  return "";
}

void S3Client::fail_request(const S3Request& request, const S3Response& response,
                            std::string_view doing) const {
  const S3Error error = read_s3_error(response.body);
  std::string said = response.trouble;
  if (said.empty()) {
    said = text(response.status, error.code.empty() ? "" : " ", error.code);
    std::string message = error.message;
    while (message.ends_with('.')) message.pop_back();
    if (!message.empty()) said += " (" + message + ")";
  }
  fail(ExitCode::checkpoint, doing, ": ", request.method, " ", url(request), ": ", said,
       response.attempts > 1 ? text(" (", response.attempts, " attempts)") : "", advice(response));
}

}  // namespace phalanx
