#pragma once

#include <string>

namespace phalanx {

enum class LogLevel { debug, info, warning, error };

/// Lines below this level are dropped. Default: info, or PHALANX_LOG=debug|info|warning|error;
/// errors are always shown.
void set_log_level(LogLevel level);

/// One line to stderr. Results go to stdout and never through here.
void log(LogLevel level, const std::string& line);
inline void log_debug(const std::string& line) { log(LogLevel::debug, line); }
inline void log_info(const std::string& line) { log(LogLevel::info, line); }
inline void log_warning(const std::string& line) { log(LogLevel::warning, line); }
inline void log_error(const std::string& line) { log(LogLevel::error, line); }

}  // namespace phalanx
