#pragma once

#include <string>

#include "phalanx/base/descriptor.h"

namespace phalanx {

/// A socket that listens on a TCP port.
struct Listener {
  Descriptor socket;
  int port = 0;
};

enum class Reach { this_host, everywhere };

/// Port 0 takes a free one. Throws Error(environment) that names the port and, if it is in use,
/// says `other`: how to give another one.
Listener listen_on(int port, Reach reach, const std::string& other);

}  // namespace phalanx
