#pragma once

// A real S3 server for tests, SeaweedFS from PyPI, and a proxy before it that makes trouble.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/checkpoint/s3_client.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace phalanx::testing {

inline int listen_somewhere(int& port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  require(bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
              getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
              listen(descriptor, 64) == 0,
          ExitCode::environment, "no free port");
  port = ntohs(address.sin_port);
  return descriptor;
}

// Ports that were free a moment ago.
inline std::vector<int> free_ports(int count) {
  std::vector<int> ports(count), descriptors;
  for (int& port : ports) descriptors.push_back(listen_somewhere(port));
  for (int descriptor : descriptors) close(descriptor);
  return ports;
}

// Runs until the end of its life, or of this process's. Its bucket is called "bucket".
class S3Server {
 public:
  static constexpr const char* key = "AKTEST0000";
  static constexpr const char* secret = "SKTEST0000secret";

  S3Server() : folder_(temporary_folder()) {
    const std::string weed = PHALANX_SOURCE_DIR "/.venv/bin/weed";
    require(std::filesystem::exists(weed), ExitCode::environment, "the S3 tests need ", weed,
            ", which is not there: run `tools/install.sh test`");
    std::ofstream(folder_ + "/s3.json")
        << R"({"identities":[{"name":"test","credentials":[{"accessKey":")" << key
        << R"(","secretKey":")" << secret
        << R"("}],"actions":["Admin","Read","Write","List","Tagging"]}]})";
    const auto ports = free_ports(8);
    port_ = ports[0];
    sockets_ = {text("master-grpc-", ports[2]), text("volume-grpc-", ports[4]),
                text("filer-grpc-", ports[6]), text("s3-grpc-", ports[7])};
    const auto option = [](const char* name, const auto& value) {
      return text(" -", name, "=", value);
    };
    // Off: what calls home, and servers of other protocols. Sockets lie in the folder.
    const std::string command =
        "exec " + weed + " server" + option("dir", folder_) + option("ip", "127.0.0.1") +
        option("ip.bind", "127.0.0.1") + option("master.port", ports[1]) +
        option("master.port.grpc", ports[2]) + option("volume.port", ports[3]) +
        option("volume.port.grpc", ports[4]) + " -filer" + option("filer.port", ports[5]) +
        option("filer.port.grpc", ports[6]) + " -s3" + option("s3.port", port_) +
        option("s3.port.grpc", ports[7]) + option("s3.config", folder_ + "/s3.json") +
        option("master.volumeSizeLimitMB", 64) + option("volume.max", 20) +
        option("master.telemetry", "false") + option("s3.port.iceberg", 0) +
        option("s3.port.lance", 0) + option("s3.iam", "false") +
        option("filer.localSocket", folder_ + "/f.sock") +
        option("s3.localSocket", folder_ + "/s.sock") + " >" + folder_ + "/log 2>&1";
    // Killed with us, even if we are killed.
    server_ = std::make_unique<Program>(
        std::vector<std::string>{"setpriv", "--pdeathsig", "KILL", "sh", "-c", command},
        ProgramOptions{.environment = {{"TMPDIR", folder_}, {"HOME", folder_}}});
    use(port_);
    await();
  }

  ~S3Server() {
    server_.reset();
    for (const auto& name : sockets_) unlink(("/tmp/seaweedfs-" + name + ".sock").c_str());
  }
  S3Server(const S3Server&) = delete;

  int port() const { return port_; }

  /// Points this process's environment to a server at `port` of this machine.
  static void use(int port) {
    for (const char* name : {"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION"})
      unsetenv(name);
    setenv("AWS_ENDPOINT_URL_S3", text("http://127.0.0.1:", port).c_str(), 1);
    setenv("AWS_ACCESS_KEY_ID", key, 1);
    setenv("AWS_SECRET_ACCESS_KEY", secret, 1);
    setenv("no_proxy", "127.0.0.1", 1);
  }

 private:
  // Until it has made the bucket and stored an object there.
  void await() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    std::string said;
    while (std::chrono::steady_clock::now() < end) {
      const S3Client client(read_s3_settings(), "bucket");
      const auto put = [&](const std::string& name) {
        return client.perform({.method = "PUT", .key = name, .body = "", .attempts = 1});
      };
      const S3Response made = put("");
      const S3Response stored = made.good() || made.status == 409 ? put("ready") : made;
      if (stored.good()) return;
      said = text(stored.status, " ", stored.trouble, stored.body);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    fail(ExitCode::environment, "weed did not start within 60 s: ", said, "\n",
         read_file(folder_ + "/log", ExitCode::environment));
  }

  std::string folder_;
  int port_ = 0;
  std::vector<std::string> sockets_;  // it makes them in /tmp whatever it is told
  std::unique_ptr<Program> server_;
};

enum class Fault {
  none,
  error_500,
  error_200,
  half_body,
  drip,
  refuse,
  reset,
  lose_answer,
  ignore_range,
  other_range,
  same_page
};

// Passes requests on to a server, one after another on each connection, and does to each what
// `rule` says of it: its first line and its number, from 1.
class S3Proxy {
 public:
  using Rule = std::function<Fault(const std::string& line, int number)>;

  explicit S3Proxy(int upstream) : upstream_(upstream) {
    listener_ = listen_somewhere(port_);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~S3Proxy() {
    stopping_ = true;
    acceptor_.join();
    for (auto& thread : threads_) thread.join();
    close(listener_);
  }
  S3Proxy(const S3Proxy&) = delete;

  int port() const { return port_; }
  int requests() const { return count_; }
  /// Until what killed clients sent is done with; call without connections of this process.
  void await_quiet() const {
    for (int quiet = 0; quiet < 2; quiet = connections_ == 0 ? quiet + 1 : 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  void set_rule(Rule rule) {
    const std::lock_guard lock(mutex_);
    rule_ = std::move(rule);
    count_ = 0;
  }

 private:
  static bool send_all(int to, const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t count = send(to, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (count <= 0) return false;
      done += count;
    }
    return true;
  }

  // False at the end of the stream, or of the proxy.
  bool receive(int from, std::string& bytes) const {
    pollfd polled{from, POLLIN, 0};
    while (poll(&polled, 1, 20) == 0)
      if (stopping_) return false;
    char buffer[65536];
    const ssize_t count = recv(from, buffer, sizeof(buffer), 0);
    if (count > 0) bytes.append(buffer, count);
    return count > 0;
  }

  void accept_all() {
    while (!stopping_) {
      pollfd polled{listener_, POLLIN, 0};
      if (poll(&polled, 1, 20) <= 0) continue;
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      ++connections_;
      threads_.emplace_back([this, client] {
        std::string bytes;
        while (serve(client, bytes)) {
        }
        close(client);
        --connections_;
      });
    }
  }

  static size_t content_length(const std::string& head) {
    const size_t place = head.find("Content-Length: ");
    return place == std::string::npos ? 0 : std::strtoul(head.c_str() + place + 16, nullptr, 10);
  }

  std::string ask_upstream(const std::string& request) const {
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(static_cast<uint16_t>(upstream_)),
                        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    std::string answer;
    if (connect(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        send_all(server, request))
      while (receive(server, answer)) {
      }
    close(server);
    return answer;
  }

  // One request; false if the connection is not to be used again.
  bool serve(int client, std::string& bytes) {
    size_t end = 0;
    while ((end = bytes.find("\r\n\r\n")) == std::string::npos)
      if (!receive(client, bytes)) return false;
    std::string head = bytes.substr(0, end + 2), body = bytes.substr(end + 4);
    const size_t expect = head.find("Expect: 100-continue\r\n");
    if (expect != std::string::npos) {
      head.erase(expect, 22);
      if (!send_all(client, "HTTP/1.1 100 Continue\r\n\r\n")) return false;
    }
    while (body.size() < content_length(head))
      if (!receive(client, body)) return false;
    bytes = body.substr(content_length(head));
    body.resize(content_length(head));
    const std::string line = head.substr(0, head.find("\r\n"));
    Rule rule;
    int number = 0;
    {
      const std::lock_guard lock(mutex_);
      rule = rule_;
      number = ++count_;
    }
    return act(rule ? rule(line, number) : Fault::none, client, head, body);
  }

  bool act(Fault fault, int client, std::string head, const std::string& body) {
    const auto own = [&](const char* status, const char* code, const char* message) {
      const std::string xml = text("<?xml version=\"1.0\"?><Error><Code>", code, "</Code><Message>",
                                   message, "</Message></Error>");
      return send_all(
          client, text("HTTP/1.1 ", status, "\r\nContent-Length: ", xml.size(), "\r\n\r\n", xml));
    };
    if (fault == Fault::error_500)
      return own("500 Internal Server Error", "InternalError", "We lost a disk.");
    if (fault == Fault::error_200) return own("200 OK", "InternalError", "We lost a disk.");
    if (fault == Fault::refuse) return own("403 Forbidden", "AccessDenied", "Access Denied.");
    if (fault == Fault::reset) {
      const linger now{1, 0};
      setsockopt(client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
      return false;
    }
    if (fault == Fault::other_range)
      if (const size_t range = head.find("bytes=0-"); range != std::string::npos)
        head.replace(range, 8, "bytes=1-");
    if (fault == Fault::ignore_range)
      if (const size_t range = head.find("Range: "); range != std::string::npos)
        head.erase(range, head.find("\r\n", range) + 2 - range);
    const std::string answer = ask_upstream(head + "Connection: close\r\n\r\n" + body);
    if (fault == Fault::lose_answer) return false;  // the server did it, and nobody is told
    const size_t begin = answer.find("\r\n\r\n") + 4;
    if (fault == Fault::same_page) {  // of a list that goes on
      const std::string xml =
          "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again"
          "</NextContinuationToken></ListBucketResult>";
      send_all(client, text("HTTP/1.1 200 OK\r\nContent-Length: ", xml.size(), "\r\n\r\n", xml));
    } else if (fault == Fault::half_body) {
      send_all(client, answer.substr(0, begin + (answer.size() - begin) / 2));
    } else if (fault == Fault::drip) {
      for (size_t at = 0; at < answer.size() && !stopping_; ++at) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (!send_all(client, answer.substr(at, 1))) return false;
      }
    } else {
      send_all(client, answer);
    }
    return false;
  }

  int upstream_, port_ = 0, listener_ = -1;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  Rule rule_;
  std::atomic<int> count_ = 0, connections_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> threads_;  // of the acceptor
};

}  // namespace phalanx::testing
