#include "phalanx/base/listener.h"

#include <gtest/gtest.h>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

TEST(Listener, APortInUseIsNamedWithTheFix) {
  for (const auto reach : {Reach::this_host, Reach::everywhere}) {
    const Listener first = listen_on(0, Reach::this_host, "");
    EXPECT_GT(first.port, 0);
    try {
      listen_on(first.port, reach, "give another --port");
      FAIL() << "two listeners on one port";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::environment);
      EXPECT_EQ(std::string(error.what()),
                text("port ", first.port, " is in use on this machine; give another --port"));
    }
  }
}

}  // namespace
}  // namespace phalanx
