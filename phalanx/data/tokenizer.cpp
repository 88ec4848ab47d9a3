#include "phalanx/data/tokenizer.h"

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  std::optional<int64_t> end_of_document() const override { return 255; }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (int64_t id : ids) {
      require(0 <= id && id < 256, ExitCode::data, "token id ", id,
              " is not in the byte tokenizer's vocabulary of 256");
      if (id != 255) text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  require(name == "byte", ExitCode::usage, "no tokenizer '", name, "'; there is: byte");
  return byte_tokenizer();
}

}  // namespace phalanx
