#include "phalanx/checkpoint/s3_xml.h"

#include <charconv>
#include <pugixml.hpp>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

pugi::xml_node parse(pugi::xml_document& document, const std::string& body) {
  // Keys may begin or end with blanks: text is kept as it is. No entities but XML's own five, and
  // no document type, are ever expanded by this parser.
  const auto result = document.load_buffer(body.data(), body.size(), pugi::parse_default);
  return result ? document.document_element() : pugi::xml_node();
}

int64_t number(const char* digits, const std::string& url) {
  int64_t value = -1;
  const std::string_view given(digits);
  const auto result = std::from_chars(given.data(), given.data() + given.size(), value);
  require(result.ec == std::errc() && result.ptr == given.data() + given.size() && value >= 0,
          ExitCode::checkpoint, "the list of ", url, " has the size '", given, "'");
  return value;
}

}  // namespace

S3Error read_s3_error(const std::string& body) {
  pugi::xml_document document;
  const auto root = parse(document, body);
  if (std::string_view(root.name()) != "Error") return {};
  return {root.child_value("Code"), root.child_value("Message")};
}

S3Page read_s3_page(const std::string& body, const std::string& url) {
  pugi::xml_document document;
  const auto root = parse(document, body);
  const std::string_view name = root.name();
  const bool uploads = name == "ListMultipartUploadsResult";
  require(uploads || name == "ListBucketResult", ExitCode::checkpoint, "the answer to ", url,
          " is no list of objects; is it an S3 server?");
  S3Page page;
  for (const auto& node : root.children("Contents"))
    page.objects.push_back({node.child_value("Key"), number(node.child_value("Size"), url), ""});
  for (const auto& node : root.children("Upload"))
    page.objects.push_back({node.child_value("Key"), 0, node.child_value("UploadId")});
  for (const auto& node : root.children("CommonPrefixes"))
    page.folders.push_back(node.child_value("Prefix"));
  if (std::string_view(root.child_value("IsTruncated")) == "true") {
    page.next = root.child_value(uploads ? "NextKeyMarker" : "NextContinuationToken");
    page.next_upload = root.child_value("NextUploadIdMarker");
    require(!page.next.empty(), ExitCode::checkpoint, "the list of ", url,
            " is cut and does not say how it goes on");
  }
  return page;
}

std::string read_s3_field(const std::string& body, const char* root, const char* field) {
  pugi::xml_document document;
  const auto element = parse(document, body);
  return std::string_view(element.name()) == root ? element.child_value(field) : "";
}

}  // namespace phalanx
