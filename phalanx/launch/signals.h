#pragma once

namespace phalanx {

/// From now on the first SIGTERM, SIGINT or SIGUSR1 does not end this process but asks it to: a
/// trainer that polls stop_requested() after each step saves and leaves with
/// ExitCode::interrupted. A second SIGINT ends it at once. Ranks receive such signals at different
/// steps, so they have to agree (all-reduce the flag) before they act on it.
void install_stop_signals();

/// The signal that asked, or 0.
int stop_requested();

}  // namespace phalanx
