#include "phalanx/comm/ledger.h"

#include "phalanx/base/text.h"

namespace phalanx {

int64_t& Ledger::row(std::string_view group, std::string_view purpose) {
  return rows_[text(group, "/", purpose)];
}

int64_t Ledger::bytes(std::string_view row) const {
  auto found = rows_.find(row);
  return found == rows_.end() ? 0 : found->second;
}

int64_t Ledger::total() const {
  int64_t sum = 0;
  for (const auto& [name, bytes] : rows_) sum += bytes;
  return sum;
}

void Ledger::reset() {
  for (auto& [name, bytes] : rows_) bytes = 0;
}

void LedgerRows::add(std::string_view purpose, int64_t bytes) {
  auto found = rows_.find(purpose);
  if (found == rows_.end())
    found = rows_.emplace(std::string(purpose), &ledger_.row(group_, purpose)).first;
  *found->second += bytes;
}

}  // namespace phalanx
