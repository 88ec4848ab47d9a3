#include "phalanx/launch/output.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <deque>

namespace phalanx {
namespace {

// What a reader of the sink has seen so far.
std::string drain(Sink& sink, int reader) {
  sink.write_some();
  fcntl(reader, F_SETFL, O_NONBLOCK);
  std::string seen;
  char buffer[4096];
  for (ssize_t got; (got = read(reader, buffer, sizeof(buffer))) > 0;) seen.append(buffer, got);
  return seen;
}

void put(const Descriptor& to, const std::string& bytes) {
  ASSERT_EQ(write(to.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

TEST(Output, LinesAreNeverTorn) {
  Pipe shown = make_pipe();
  Sink sink(shown.write.get());
  Pipe zero = make_pipe(), one = make_pipe();
  std::deque<std::string> last;
  RankStream first(0, std::move(zero.read), sink, nullptr, nullptr),
      second(1, std::move(one.read), sink, nullptr, &last);
  put(zero.write, "first half, ");
  first.read_some();
  put(one.write, "another's ");
  second.read_some();
  EXPECT_EQ(drain(sink, shown.read.get()), "");
  put(one.write, "line\nprogress 1\rprogress 2\r\nrest");
  second.read_some();
  put(zero.write, "second half\n");
  first.read_some();
  EXPECT_EQ(drain(sink, shown.read.get()),
            "[rank 1] another's line\n[rank 1] progress 2\nfirst half, second half\n");
  second.finish();
  put(zero.write, "no end of line");
  first.finish();
  EXPECT_EQ(drain(sink, shown.read.get()), "[rank 1] rest\nno end of line");
  EXPECT_EQ(last, (std::deque<std::string>{"another's line", "progress 2", "rest"}));
  EXPECT_FALSE(second.open());
}

TEST(Output, KeepsTheLastTwentyLines) {
  Pipe shown = make_pipe(), source = make_pipe();
  Sink sink(shown.write.get());
  std::deque<std::string> last;
  RankStream stream(0, std::move(source.read), sink, nullptr, &last);
  for (int line = 0; line < 50; ++line) put(source.write, text(line, "\n"));
  stream.read_some();
  ASSERT_EQ(last.size(), 20u);
  EXPECT_EQ(last.front(), "30");
  EXPECT_EQ(last.back(), "49");
}

TEST(Output, ASlowReaderBlocksNobody) {
  Pipe shown = make_pipe(), source = make_pipe();
  Sink sink(shown.write.get());
  const std::string line(1 << 10, 'x');
  for (int i = 0; i < 1024; ++i) sink.line(line);
  sink.write_some();  // a pipe takes 64 KiB; the rest has to wait
  EXPECT_GT(sink.pending(), size_t{900} << 10);
  size_t seen = 0;
  while (sink.pending() > 0) seen += drain(sink, shown.read.get()).size();
  seen += drain(sink, shown.read.get()).size();
  EXPECT_EQ(seen, 1024 * (line.size() + 1));
  shown.read.reset();
  signal(SIGPIPE, SIG_IGN);
  sink.line("nobody reads this");
  sink.write_some();
  EXPECT_TRUE(sink.closed());
  EXPECT_EQ(sink.failure(), 0);
}

TEST(Output, ASinkThatCannotBeWrittenKeepsTheReason) {
  const Descriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  Sink sink(full.get());
  sink.line("lost");
  EXPECT_EQ(sink.failure(), 0);
  sink.write_some();
  EXPECT_TRUE(sink.closed());
  EXPECT_EQ(sink.failure(), ENOSPC);
}

TEST(Output, ALogThatCannotBeWrittenIsSaidOnce) {
  Pipe shown = make_pipe(), out = make_pipe(), error = make_pipe();
  Sink sink(shown.write.get());
  LogFile log("/dev/full", sink);
  RankStream first(0, std::move(out.read), sink, &log, nullptr),
      second(0, std::move(error.read), sink, &log, nullptr);
  put(out.write, "one\ntwo\n");
  first.read_some();
  put(error.write, "three\n");
  second.read_some();
  EXPECT_EQ(drain(sink, shown.read.get()),
            "one\nwarning: cannot write /dev/full: No space left on device; its lines are lost "
            "from here on\ntwo\nthree\n");
}

// A terminal shows what it would show without an agent, and other ranks' lines above a live line.
TEST(Output, ALiveLineSurvivesOtherRanksLines) {
  int ours, theirs;
  ASSERT_EQ(openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  const Descriptor screen(ours), terminal(theirs);
  Sink sink(terminal.get());
  ASSERT_TRUE(sink.terminal());
  Pipe channel = make_channel(sink, true), one = make_pipe();
  EXPECT_TRUE(isatty(channel.write.get()));
  std::deque<std::string> last;
  RankStream first(0, std::move(channel.read), sink, nullptr, &last),
      second(1, std::move(one.read), sink, nullptr, nullptr);
  put(channel.write, "begin\n\rstep 1");
  first.read_some();
  EXPECT_EQ(drain(sink, screen.get()), "begin\r\n\rstep 1");
  put(channel.write, "\rstep 2");
  first.read_some();
  EXPECT_EQ(drain(sink, screen.get()), "\rstep 2");
  put(one.write, "warning\n");
  second.read_some();
  EXPECT_EQ(drain(sink, screen.get()), "\r\x1b[K[rank 1] warning\r\nstep 2");
  channel.write.reset();
  first.read_some();
  EXPECT_FALSE(first.open());
  sink.settle();
  EXPECT_EQ(drain(sink, screen.get()), "\r\n");
  EXPECT_EQ(last, (std::deque<std::string>{"begin", "step 2"}));
}

// Of a line without end a terminal still shows the last part, which is all that is drawn again.
TEST(Output, ALineWithoutEndIsNotKeptWhole) {
  int ours, theirs;
  ASSERT_EQ(openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  const Descriptor screen(ours), terminal(theirs);
  Sink sink(terminal.get());
  for (int part = 0; part < 100; ++part) sink.pass(std::string(10'000, 'x'));
  const size_t before = sink.pending();
  EXPECT_EQ(before, 1'000'000u);
  sink.line("a line of another rank");
  EXPECT_GT(sink.pending(), before + 60'000);
  EXPECT_LT(sink.pending(), before + 140'000);
}

// A slow reader of a pipe that others write to as well finds no line of theirs inside one of ours.
TEST(Output, WhatAPipeHasNoRoomForBeginsWithALine) {
  Pipe shown = make_pipe();
  Sink sink(shown.write.get());
  for (int i = 0; i < 3000; ++i) sink.line(std::string(99, 'x'));
  size_t seen = 0;
  for (int round = 0; sink.pending() > 0 && round < 100; ++round) {
    const std::string part = drain(sink, shown.read.get());
    ASSERT_FALSE(part.empty());
    EXPECT_EQ(part.back(), '\n') << part.size();
    seen += part.size();
  }
  EXPECT_EQ(seen + drain(sink, shown.read.get()).size(), 300'000u);
  sink.pass(std::string(5000, 'y'));  // no end within what is written at once
  EXPECT_EQ(drain(sink, shown.read.get()).size(), 5000u);
}

TEST(Output, OneDestinationIsKnownUnderTwoNumbers) {
  const Pipe pipe = make_pipe(), other = make_pipe();
  const Descriptor again(dup(pipe.write.get()));
  EXPECT_TRUE(same_destination(pipe.write.get(), again.get()));
  EXPECT_FALSE(same_destination(pipe.write.get(), other.write.get()));
  EXPECT_FALSE(same_destination(-1, -1));
}

TEST(Output, ARanksTerminalFollowsTheSizeOfTheAgents) {
  int ours, theirs;
  winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
  const Descriptor screen(ours), terminal(theirs);
  Sink sink(terminal.get());
  Pipe channel = make_channel(sink, true);
  RankStream stream(0, std::move(channel.read), sink, nullptr, nullptr);
  size.ws_col = 132;
  ASSERT_EQ(ioctl(screen.get(), TIOCSWINSZ, &size), 0);
  stream.resize();
  winsize seen{};
  ASSERT_EQ(ioctl(channel.write.get(), TIOCGWINSZ, &seen), 0);
  EXPECT_EQ(seen.ws_row, 24);
  EXPECT_EQ(seen.ws_col, 132);
}

// A program that a rank left behind may write without end; here a file of 64 MB stands for it.
TEST(Output, WhatARankLeftIsReadAndNoMore) {
  Pipe shown = make_pipe();
  Sink sink(shown.write.get());
  Descriptor endless(memfd_create("endless", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(endless.get(), 1 << 26), 0);
  RankStream stream(0, std::move(endless), sink, nullptr, nullptr);
  stream.finish();
  EXPECT_FALSE(stream.open());
  EXPECT_GE(sink.pending(), 1u << 16);  // what a pipe holds
  EXPECT_LE(sink.pending(), 1u << 20);
}

}  // namespace
}  // namespace phalanx
