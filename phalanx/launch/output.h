#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx/launch/pipe.h"

namespace phalanx {

/// One of the agent's own streams. Nothing here waits for the reader: what it does not take yet is
/// kept, and the supervisor polls.
class Sink {
 public:
  explicit Sink(int descriptor) : descriptor_(descriptor), terminal_(isatty(descriptor)) {}

  /// Rank 0's bytes: as they come on a terminal.
  void pass(std::string_view bytes);
  /// A whole line, without its end; never into the middle of another on a terminal.
  void line(std::string_view text);
  /// Ends a line that rank 0 left unfinished.
  void settle();
  /// Writes what the reader takes without blocking, after poll() said that it takes something.
  void write_some();

  int descriptor() const { return descriptor_; }
  bool terminal() const { return terminal_; }
  bool closed() const { return closed_; }
  /// Why it cannot be written; 0 while it can, and where its reader has just gone.
  int failure() const { return failure_; }
  size_t pending() const { return pending_.size(); }

 private:
  int descriptor_;
  bool terminal_;
  bool closed_ = false;  // nothing more can be written
  int failure_ = 0;
  std::string pending_;     // not yet written
  std::string unfinished_;  // the last of rank 0's bytes since the last end of line
};

/// Whether two descriptors lead to one file, pipe or terminal: then one Sink keeps lines whole.
bool same_destination(int first, int second);

/// The file that gets what a rank writes, too. If it cannot be written, `errors` says so, once.
class LogFile {
 public:
  LogFile(std::string path, Sink& errors);
  void write(std::string_view bytes);

 private:
  std::string path_;
  Sink* errors_;
  Descriptor file_;  // closed after a failure
};

/// What one rank writes to one of its streams, cut into lines.
class RankStream {
 public:
  RankStream(int rank, Descriptor source, Sink& sink, LogFile* log,
             std::deque<std::string>* last_lines)
      : rank_(rank), source_(std::move(source)), sink_(&sink), log_(log), last_(last_lines) {}

  /// Reads what is there. Closes at the end of file, and when the sink's reader has gone.
  void read_some();
  /// Reads what is left behind by a rank that ended, and closes. Not for ever: what the rank
  /// started may still write.
  void finish();
  /// Gives the rank's terminal, if it has one, the size of the agent's.
  void resize();

  int descriptor() const { return source_.get(); }
  bool open() const { return source_.open(); }

 private:
  bool read_once();
  void take(std::string_view bytes);
  void emit(std::string_view line, bool ended);
  void close();

  int rank_;
  Descriptor source_;
  Sink* sink_;
  LogFile* log_;                   // null: none
  std::deque<std::string>* last_;  // the last lines are kept here; null: not kept
  std::string partial_;
};

/// A pipe, or a terminal of its own for a rank whose output goes to one: then it shows what it
/// would show there. `write` is the rank's end.
Pipe make_channel(const Sink& sink, bool may_be_terminal);

}  // namespace phalanx
