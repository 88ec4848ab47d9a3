#include "phalanx/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <vector>

namespace phalanx {
namespace {

// The group's folder and those above it. `controller`: of version 1, which has a tree for each;
// empty: version 2. In a container the path may be the host's, of which only the top is seen.
std::vector<std::string> folders(const std::string& root, const std::string& controller) {
  std::string path;
  std::ifstream groups(root + "/proc/self/cgroup");  // lines such as "4:cpu,cpuacct:/path"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names.find("," + controller + ",") != std::string::npos) path = line.substr(second + 1);
  }
  if (path == "/") path.clear();
  const std::string top = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
  std::vector<std::string> found{top};
  for (; path.starts_with('/'); path.resize(path.rfind('/'))) found.push_back(top + path);
  return found;
}

// The number that a file begins with; nothing for "max", and without the file.
std::optional<double> number_in(const std::string& path) {
  double number = 0;
  if (std::ifstream file(path); file >> number) return number;
  return std::nullopt;
}

template <class Number>
void lower(std::optional<Number>& limit, Number other) {
  limit = limit ? std::min(*limit, other) : other;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> cores;
  for (const std::string& folder : folders(root, "")) {
    double quota = 0, period = 0;  // "max 100000" where there is no quota
    std::ifstream file(folder + "/cpu.max");
    if (file >> quota >> period && period > 0) lower(cores, quota / period);
  }
  for (const std::string& folder : folders(root, "cpu")) {
    const auto quota = number_in(folder + "/cpu.cfs_quota_us");  // -1: none
    const auto period = number_in(folder + "/cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0) lower(cores, *quota / *period);
  }
  return cores;
}

std::optional<int64_t> memory_limit(const std::string& root) {
  constexpr double none = 0x1p60;  // version 1 writes a number near 2^63
  std::optional<int64_t> bytes;
  for (const std::string& folder : folders(root, ""))
    if (const auto limit = number_in(folder + "/memory.max"); limit && *limit < none)
      lower(bytes, static_cast<int64_t>(*limit));
  for (const std::string& folder : folders(root, "memory"))
    if (const auto limit = number_in(folder + "/memory.limit_in_bytes"); limit && *limit < none)
      lower(bytes, static_cast<int64_t>(*limit));
  return bytes;
}

}  // namespace phalanx
