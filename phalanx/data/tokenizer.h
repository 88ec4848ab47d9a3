#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

/// Text to token ids and back. Ids are in [0, vocab_size()).
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  ///< stored in token files and checkpoints: "byte"
  virtual int64_t vocab_size() const = 0;
  /// The ids of a text are those of its parts, wherever it is cut.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Ids outside of the vocabulary are an Error(data) that names the id.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The id that `data tokenize --append-end-of-document` writes after each document.
  virtual std::optional<int64_t> end_of_document() const { return std::nullopt; }
};

/// One id per byte, vocabulary 256. End of document is 255, a byte that no UTF-8 text contains;
/// decode() drops it.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// The tokenizer of that name. Unknown names are an Error(usage) that lists the known ones.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace phalanx
