#pragma once

#include <string>

namespace phalanx {

/// Where and as whom we speak to an S3 server: what the AWS tools read, in their order.
/// Environment: AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, AWS_REGION or
/// AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. Else the profile AWS_PROFILE
/// ("default") of ~/.aws/credentials and ~/.aws/config, or of the files that
/// AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name.
struct S3Settings {
  std::string key, secret, session_token;
  std::string source;    ///< where key and secret are from, for messages
  std::string region;    ///< us-east-1 if nothing says another
  std::string endpoint;  ///< "https://host:port"; empty: AWS itself
};

/// Error(checkpoint) if there are no credentials, or half of them.
S3Settings read_s3_settings();

}  // namespace phalanx
