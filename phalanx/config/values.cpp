#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/base/nearest.h"
#include "phalanx/config/keys.h"

namespace phalanx {
namespace {

std::string number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return std::to_string(static_cast<int64_t>(value));
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

const char* type_of(const ConfigValue& value) {
  constexpr const char* names[] = {"true or false", "an integer", "a number", "a string",
                                   "a list of strings"};
  return names[value.index()];
}

// TOML and JSON, in which values are saved, take no other bytes.
bool is_utf8(const std::string& bytes) {
  try {
    nlohmann::json(bytes).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

template <class Number>
bool parse_number(const std::string& text, Number& value) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string check_range(const Key& key, double value, const std::string& shown) {
  const Range& range = key.range;
  if (range.contains(value)) return "";
  std::string accepted = range.describe();
  const bool bounded = std::isfinite(range.low) && std::isfinite(range.high);
  if (!std::isfinite(value) && !bounded)
    accepted = accepted == "finite" ? "a finite number" : "a finite number " + accepted;
  return text(key.full_name(), " = ", shown, " is out of range; accepted: ", accepted);
}

}  // namespace

bool Range::contains(double value) const {
  if (!std::isfinite(value)) return false;
  return (open_low ? value > low : value >= low) && (open_high ? value < high : value <= high);
}

std::string Range::describe() const {
  const bool bounded_low = std::isfinite(low), bounded_high = std::isfinite(high);
  if (bounded_low && bounded_high && !open_low && !open_high)
    return text(number(low), " to ", number(high));
  if (bounded_low && bounded_high)
    return text(number(low), open_low ? " < x" : " <= x", open_high ? " < " : " <= ", number(high));
  if (bounded_low) return text(open_low ? "above " : "at least ", number(low));
  if (bounded_high) return text(open_high ? "below " : "at most ", number(high));
  return "finite";
}

const char* Key::type() const { return type_of(initial); }

std::string convert(const Key& key, ConfigValue& value) {
  if (std::holds_alternative<double>(key.initial) && std::holds_alternative<int64_t>(value))
    value = static_cast<double>(std::get<int64_t>(value));
  if (key.initial.index() == 4 && std::holds_alternative<std::string>(value))
    value = std::vector{std::get<std::string>(value)};
  if (value.index() != key.initial.index()) {
    const double* real = std::get_if<double>(&value);
    const bool whole =
        real && key.initial.index() == 1 && *real == std::floor(*real) && std::abs(*real) < 1e15;
    const std::string fix =
        whole ? text("write ", static_cast<int64_t>(*real))
              : text("give ", key.allowed.empty() ? key.type() : join(key.allowed, " | "));
    return text(key.full_name(), " = ", to_toml(value), " is ", type_of(value), ", not ",
                key.type(), "; ", fix);
  }
  if (const auto* integer = std::get_if<int64_t>(&value))
    return check_range(key, static_cast<double>(*integer), std::to_string(*integer));
  if (const auto* real = std::get_if<double>(&value))
    return check_range(key, *real, to_toml(value));
  const auto* string = std::get_if<std::string>(&value);
  if (string && !key.allowed.empty() &&
      std::find(key.allowed.begin(), key.allowed.end(), *string) == key.allowed.end())
    return text(key.full_name(), " = ", to_toml(value), " is none of ", join(key.allowed, " | "),
                did_you_mean(*string, key.allowed));
  return "";
}

std::string to_toml(const ConfigValue& value) {
  struct Writer {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const {
      const std::string written = number(value);  // "0.1", "1e-05", "3"
      return written.find_first_of(".en") == std::string::npos ? written + ".0" : written;
    }
    std::string operator()(const std::string& value) const {
      std::string written = "\"";
      for (unsigned char c : value) {
        constexpr const char* hex = "0123456789abcdef";
        if (c == '"' || c == '\\')
          written += {'\\', static_cast<char>(c)};
        else if (c < 0x20 || c == 0x7f)
          written += {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        else
          written += static_cast<char>(c);
      }
      return written + "\"";
    }
    std::string operator()(const std::vector<std::string>& values) const {
      std::vector<std::string> written;
      for (const auto& value : values) written.push_back((*this)(value));
      return "[" + join(written) + "]";
    }
  };
  return std::visit(Writer(), value);
}

std::string parse_override(const Key& key, const std::string& word, ConfigValue& value) {
  auto wrong = [&](const char* fix) {
    return text(key.full_name(), " = ", word.empty() ? "(nothing)" : word, " is not ", key.type(),
                "; ", fix);
  };
  if (!is_utf8(word))
    return text(key.full_name(), " is given bytes that are not UTF-8; write it in UTF-8");
  switch (key.initial.index()) {
    case 0:
      if (word != "true" && word != "false") return wrong("give true or false");
      value = word == "true";
      break;
    case 1: {
      int64_t integer = 0;
      double real = 0;
      if (parse_number(word, integer))
        value = integer;
      else if (parse_number(word, real))
        value = real;  // convert() says what is wrong
      else
        return wrong("give an integer");
      break;
    }
    case 2: {
      double real = 0;
      if (!parse_number(word, real)) return wrong("give a number");
      value = real;
      break;
    }
    case 3:
      value = word;
      break;
    default: {
      std::vector<std::string> list;
      for (size_t begin = 0; begin < word.size();) {
        const size_t end = std::min(word.find(',', begin), word.size());
        if (end > begin) list.push_back(word.substr(begin, end - begin));
        begin = end + 1;
      }
      value = list;
    }
  }
  return convert(key, value);
}

std::string meant_key(const std::string& name) {
  if (is_planned(name.substr(0, name.find('.'))) || is_planned(name)) return "";
  const std::string key = name.substr(name.find('.') + 1);
  std::vector<std::string> names;
  for (const Key& known : keys()) names.push_back(known.full_name());
  for (const Key& known : keys())
    if (known.name == key) return known.full_name();
  std::string meant = nearest(name, names);
  for (const std::string& known : names)  // "vocab" for "vocab_size"
    if (meant.empty() && key.size() >= 3 && known.starts_with(name)) meant = known;
  return meant;
}

std::string unknown_key(const std::string& name, const std::string& meant) {
  if (is_planned(name.substr(0, name.find('.'))) || is_planned(name))
    return text(name, " is not available in this version; leave it out");
  return text("unknown key '", name, "'",
              meant.empty() ? "; `phalanx config reference` lists all keys"
                            : text("; did you mean '", meant, "'?"));
}

}  // namespace phalanx
