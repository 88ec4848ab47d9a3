#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx {

// What S3 servers answer, in XML. Namespaces are ignored: servers differ in them.

struct S3Error {
  std::string code, message;  ///< both empty if the body is none
};
S3Error read_s3_error(const std::string& body);

/// A page of ListObjectsV2 or ListMultipartUploads.
struct S3Page {
  struct Object {
    std::string key;
    int64_t bytes = 0;
    std::string upload;  ///< its id, of a multipart upload that is not complete
  };
  std::vector<Object> objects;
  std::vector<std::string> folders;  ///< common prefixes, with the '/' at their ends
  std::string next;                  ///< continuation token, or key marker; empty: the last page
  std::string next_upload;           ///< upload id marker, if `next` is a key marker
};

/// Error(checkpoint) that names `url` if it is no such answer.
S3Page read_s3_page(const std::string& body, const std::string& url);

/// The text of an element below the root; empty if there is none or the root has another name.
std::string read_s3_field(const std::string& body, const char* root, const char* field);

}  // namespace phalanx
