#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace phalanx {

/// Bytes that this rank received from other ranks, by "<group>/<purpose>". Payload only: no padding
/// of transports, no headers. Fingerprints have the row "<group>/fingerprints".
/// A call is counted when its output is complete.
class Ledger {
 public:
  using Rows = std::map<std::string, int64_t, std::less<>>;

  /// The counter of one row, valid as long as the ledger: transports keep it.
  int64_t& row(std::string_view group, std::string_view purpose);
  Rows snapshot() const { return rows_; }  ///< rows of zero included
  int64_t bytes(std::string_view row) const;
  int64_t total() const;
  void reset();  ///< all rows to zero

  /// Time for which this rank stood still because peers had not arrived.
  std::chrono::nanoseconds waited{0};

 private:
  Rows rows_;
};

/// The rows of one group, found without building a string.
class LedgerRows {
 public:
  LedgerRows(Ledger& ledger, std::string group) : ledger_(ledger), group_(std::move(group)) {}
  void add(std::string_view purpose, int64_t bytes);
  void add_wait(std::chrono::nanoseconds time) { ledger_.waited += time; }

 private:
  Ledger& ledger_;
  std::string group_;
  std::map<std::string, int64_t*, std::less<>> rows_;
};

}  // namespace phalanx
