#pragma once

namespace phalanx {

/// Whether this process was started to ignore it, as nohup does with SIGHUP, and a shell with
/// SIGINT for what a script runs in the background; or has decided so itself.
bool is_ignored(int signal);

/// From now on the first SIGTERM or SIGINT does not end this process but asks it to: a trainer that
/// polls stop_requested() after each step saves and leaves with ExitCode::interrupted. A second
/// SIGINT ends it at once. SIGUSR1 asks to save and go on. Ranks receive such signals at different
/// steps, so they have to agree (all-reduce what they were asked) before they act on it. Those that
/// are ignored stay ignored.
void install_signals();

/// The signal that asked, or 0.
int stop_requested();

/// How many times SIGUSR1 has come. All ranks are sent it: the largest number is what counts, so
/// that ranks that hear of it a step later do not ask again.
int saves_requested();

}  // namespace phalanx
