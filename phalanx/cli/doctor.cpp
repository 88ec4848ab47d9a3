#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/version.h>

#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "phalanx/base/cgroup.h"
#include "phalanx/base/cores.h"
#include "phalanx/base/listener.h"
#include "phalanx/cli/command.h"
#include "phalanx/device/limits.h"

namespace phalanx::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Problem {
  std::string what, fix;
  bool fatal = false;  // ranks cannot train like this
};
using Problems = std::vector<Problem>;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The rest of the line of LibTorch's build description that holds `key`, up to a comma.
std::string from_config(const std::string& key) {
  const std::string config = at::show_config();
  const size_t at = config.find(key);
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size();
  return config.substr(begin, config.find_first_of(",\n", begin) - begin);
}

// kB in /proc/meminfo; bytes here.
int64_t memory(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;)
    if (int64_t kilobytes = 0; word == key + ":" && file >> kilobytes) return kilobytes << 10;
  return 0;
}

// The words of a kernel switch, the chosen one in brackets.
std::string chosen(const std::string& line) {
  const size_t begin = line.find('[');
  return begin == std::string::npos ? "not there"
                                    : line.substr(begin + 1, line.find(']') - begin - 1);
}

Json versions(Problems& problems) {
  const std::string blas = from_config("BLAS_INFO=");
  if (blas.empty() || blas == "generic")
    problems.push_back(
        {"LibTorch was built without a fast BLAS", "install the torch wheel", false});
  const std::string capability = at::get_cpu_capability();
  if (capability == "DEFAULT" || capability == "NO AVX")
    problems.push_back(
        {"the kernels run without vector instructions (CPU capability " + capability + ")",
         "unset ATEN_CPU_CAPABILITY, or use a machine with AVX2", false});
  return {{"phalanx", PHALANX_VERSION},
          {"libtorch", TORCH_VERSION},
          {"blas", blas},
          {"cpu_capability", capability}};
}

Json machine(Problems& problems) {
  const int cores = available_cores(), threads = at::get_num_threads();
  const int64_t available = memory("MemAvailable");
  if (threads > cores)
    problems.push_back(
        {text(threads, " threads for ", cores, " cores"),
         text("set OMP_NUM_THREADS=", cores, ", or less where ranks share the cores")});
  if (available < (int64_t{1} << 30))
    problems.push_back({text("only ", available >> 20, " MB of memory are available"),
                        "end other programs, or train a smaller model"});
  Json found{{"cores", cores},
             {"threads", threads},
             {"memory_bytes", memory("MemTotal")},
             {"memory_available_bytes", available}};
  if (const auto limit = memory_limit()) found["memory_limit_bytes"] = *limit;
  return found;
}

// Memory that ranks share travels as a descriptor over a local socket.
bool can_share_memory() {
  const Descriptor segment(memfd_create("phalanx doctor", MFD_CLOEXEC));
  int ends[2];
  if (!segment.open() || ftruncate(segment.get(), 4096) != 0 ||
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return false;
  const Descriptor here(ends[0]), there(ends[1]);
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int sent = segment.get();
  std::memcpy(CMSG_DATA(header), &sent, sizeof(int));
  if (sendmsg(here.get(), &message, 0) != 1 || recvmsg(there.get(), &message, 0) != 1) return false;
  header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_type != SCM_RIGHTS) return false;
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof(int));
  const Descriptor arrived(received);
  void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arrived.get(), 0);
  if (mapped == MAP_FAILED) return false;
  munmap(mapped, 4096);
  return true;
}

bool can_connect() {
  const Listener listener = listen_on(0, Reach::this_host, "");
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(listener.port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

Json transports(Problems& problems) {
  const bool shared = can_share_memory();
  if (!shared)
    problems.push_back(
        {"ranks cannot share memory (memfd_create and descriptors over a local "
         "socket)",
         "allow these system calls in the container's seccomp profile"});
  const bool loopback = can_connect();
  if (!loopback)
    problems.push_back(
        {"ranks cannot meet over the loopback interface", "bring it up: ip link set lo up", true});
  const bool gloo = from_config("USE_GLOO=") == "ON";
  if (!gloo)
    problems.push_back(
        {"LibTorch was built without Gloo, so ranks cannot span hosts", "install the torch wheel"});
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  return {{"shared_memory", shared},
          {"gloo", gloo},
          {"loopback", loopback},
          {"network_namespace", network},
          {"boot_id", first_line("/proc/sys/kernel/random/boot_id")}};
}

Json speed(Problems& problems) {
  constexpr int64_t elements = 16 << 20;
  const double gemm = matrix_product_rate(at::kFloat).best;
  const auto source = at::zeros({elements});
  auto target = at::empty({elements});
  const double copy = measure_rate(4.0 * elements, 0.1, [&] { target.copy_(source); }).best;
  if (gemm < 5e9)
    problems.push_back(
        {text("matrix products run at ", gemm / 1e9, " GFLOP/s, which is slow"),
         "see whether other programs use the cores (top), and cpu_capability above"});
  auto rounded = [](double value) { return std::round(value / 1e8) / 10; };
  return {{"gemm_fp32_gflops", rounded(gemm)}, {"copy_gb_per_s", rounded(copy)}};
}

Json limit_of(int resource) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  return limit.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(limit.rlim_cur);
}

Json limits(Problems& problems) {
  const Json files = limit_of(RLIMIT_NOFILE);
  if (files.is_number() && files.get<int64_t>() < 256)
    problems.push_back(
        {text("only ", files, " files may be open at once"), "ulimit -n 4096 before the start"});
  const std::string pages = chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  const std::string shared =
      chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  if (pages == "never")
    problems.push_back({"transparent huge pages are off, which makes large buffers slower",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)"});
  if (first_line("/proc/sys/vm/overcommit_memory") == "2")
    problems.push_back(
        {"the kernel refuses to overcommit memory (vm.overcommit_memory = 2), so "
         "forked ranks may fail to start",
         "sysctl vm.overcommit_memory=0 (as root)"});
  return {{"open_files", files},
          {"locked_memory_bytes", limit_of(RLIMIT_MEMLOCK)},
          {"processes", limit_of(RLIMIT_NPROC)},
          {"address_space_bytes", limit_of(RLIMIT_AS)},
          {"transparent_huge_pages", pages},
          {"transparent_huge_pages_shared", shared}};
}

std::string readable(const std::string& name, const Json& value) {
  if (name.ends_with("_bytes") && value.is_number()) {
    const double mebibytes = value.get<double>() / (1 << 20);
    return mebibytes < 1024 ? text(mebibytes, " MiB")
                            : text(std::fixed, std::setprecision(1), mebibytes / 1024, " GiB");
  }
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print(const Json& report, const Problems& problems) {
  for (const auto& [section, rows] : report.items()) {
    if (!rows.is_object()) continue;
    std::cout << section << "\n";
    for (const auto& [name, value] : rows.items()) {
      const std::string words = readable(name, value);
      std::string label = name.ends_with("_bytes") ? name.substr(0, name.size() - 6) : name;
      std::replace(label.begin(), label.end(), '_', ' ');
      std::cout << "  " << std::left << std::setw(32) << label << words << "\n";
    }
  }
  std::cout << (problems.empty() ? "nothing is wrong\n" : "what is wrong\n");
  for (const auto& problem : problems)
    std::cout << "  " << problem.what << "\n    to mend it: " << problem.fix << "\n";
}

}  // namespace
}  // namespace phalanx::cli

extern "C" int phalanx_command_doctor(int argc, char** argv) {
  using namespace phalanx::cli;
  CommandLine app(
      "Versions, transports, speed and limits of this machine; what is wrong and how to "
      "mend it. Exit code 3 if ranks cannot train here.",
      "phalanx doctor");
  bool as_json = false;
  app.add_flag("--json", as_json, "one JSON object on stdout");
  if (!app.read(argc, argv)) return 0;

  Problems problems;
  Json report;
  report["versions"] = versions(problems);
  report["machine"] = machine(problems);
  report["transports"] = transports(problems);
  report["speed"] = speed(problems);
  report["limits"] = limits(problems);
  bool fatal = false;
  report["problems"] = Json::array();
  for (const auto& problem : problems) {
    report["problems"].push_back({{"what", problem.what}, {"fix", problem.fix}});
    fatal |= problem.fatal;
  }
  if (as_json)
    std::cout << report.dump() << "\n";
  else
    print(report, problems);
  return static_cast<int>(fatal ? phalanx::ExitCode::environment : phalanx::ExitCode::done);
}
