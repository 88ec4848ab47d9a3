#include <iostream>
#include <nlohmann/json.hpp>

#include "phalanx/base/log.h"
#include "phalanx/cli/command.h"
#include "phalanx/data/token_file.h"
#include "phalanx/data/tokenize.h"

namespace phalanx::cli {
namespace {

nlohmann::ordered_json description(const std::string& path, const TokenFileHeader& header) {
  nlohmann::ordered_json fields = {{"file", path},
                                   {"tokens", header.token_count},
                                   {"documents", header.document_count},
                                   {"token_bytes", header.token_bytes},
                                   {"vocab_size", header.vocab_size},
                                   {"max_token", header.max_token},
                                   {"end_of_document", nullptr},
                                   {"tokenizer", std::string(header.tokenizer)}};
  if (header.end_of_document >= 0) fields["end_of_document"] = header.end_of_document;
  return fields;
}

void print(const nlohmann::ordered_json& fields, bool as_json) {
  if (as_json) {
    std::cout << fields.dump() << "\n";
    return;
  }
  for (const auto& [key, value] : fields.items())
    if (!value.is_null())
      std::cout << std::left << std::setw(17) << key
                << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
}

}  // namespace
}  // namespace phalanx::cli

extern "C" int phalanx_command_data(int argc, char** argv) {
  using namespace phalanx;
  cli::CommandLine app("Makes token files from text, and looks into them.", "phalanx data");
  app.require_subcommand(1);
  std::vector<std::string> inputs, extensions;
  std::string output, file, tokenizer = "byte";
  bool append_end = false, json = false;
  CLI::App* tokenize = app.add_subcommand("tokenize", "one token file from text files");
  tokenize->add_option("input", inputs, "files, and folders with all that is in them")->required();
  tokenize->add_option("-o,--output", output, "the token file")->required();
  tokenize->add_option("--extension", extensions, "in folders, only files that end so (repeatable)")
      ->allow_extra_args(false);
  tokenize->add_option("--tokenizer", tokenizer, "byte: one id per byte")->capture_default_str();
  tokenize->add_flag("--append-end-of-document", append_end, "end each document with its own id");
  CLI::App* inspect = app.add_subcommand("inspect", "what a token file holds; reads and checks it");
  inspect->add_option("file", file, "the token file")->required();
  for (CLI::App* command : {tokenize, inspect})
    command->add_flag("--json", json, "one JSON object");
  if (!app.read(argc, argv)) return 0;

  if (tokenize->parsed()) {
    const auto report = tokenize_files(find_documents(inputs, extensions), output,
                                       *make_tokenizer(tokenizer), append_end);
    if (report.empty_files > 0)
      log_warning(text(report.empty_files, " empty files were passed over"));
    cli::print(cli::description(output, report.header), json);
  } else {
    const TokenFile opened(file);
    const std::string defect = opened.check();
    require(defect.empty(), ExitCode::data, defect);
    cli::print(cli::description(file, opened.header()), json);
  }
  return 0;
}
