#include "sim/report/open_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// Backslash, quote and line end are escaped in help texts and in label values alike.
std::string EscapedText(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

OpenMetricsText::OpenMetricsText(const MetricLabels& common) : common_(common) {}

void OpenMetricsText::BeginFamily(std::string_view name, std::string_view type,
                                  std::string_view unit, std::string_view help) {
  name_ = std::string(name);
  absl::StrAppend(&out_, "# TYPE ", name_, " ", AbslView(type), "\n");
  if (!unit.empty()) absl::StrAppend(&out_, "# UNIT ", name_, " ", AbslView(unit), "\n");
  absl::StrAppend(&out_, "# HELP ", name_, " ", EscapedText(help), "\n");
}

void OpenMetricsText::AppendLabels(const MetricLabels& labels) {
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&out_, out_.back() == '{' ? "" : ",", name, "=\"", EscapedText(value), "\"");
  }
}

void OpenMetricsText::Sample(std::string_view suffix, const MetricLabels& labels,
                             std::string_view value, std::string_view timestamp) {
  absl::StrAppend(&out_, name_, AbslView(suffix), "{");
  AppendLabels(common_);
  AppendLabels(labels);
  absl::StrAppend(&out_, "} ", AbslView(value));
  if (!timestamp.empty()) absl::StrAppend(&out_, " ", AbslView(timestamp));
  out_ += '\n';
}

std::string OpenMetricsText::Finish() {
  out_ += "# EOF\n";
  return std::move(out_);
}

std::string MergeOpenMetrics(const std::vector<std::string>& texts) {
  constexpr std::string_view kFamily = "# TYPE ", kEnd = "# EOF\n";
  std::vector<std::pair<std::string, std::string>> families;  // first line, and what follows it
  for (std::string_view text : texts) {
    std::string* family = nullptr;
    bool is_new = false;
    while (!text.empty() && text != kEnd) {
      const std::string_view line = text.substr(0, text.find('\n') + 1);
      text.remove_prefix(line.size());
      if (line.substr(0, kFamily.size()) == kFamily) {
        const auto it =
            std::ranges::find_if(families, [&](const auto& other) { return other.first == line; });
        is_new = it == families.end();
        family = is_new ? &families.emplace_back(line, "").second : &it->second;
      } else if (is_new || line[0] != '#') {
        *family += line;
      }
    }
  }
  std::string out;
  for (const auto& [head, rest] : families) absl::StrAppend(&out, head, rest);
  return out + std::string(kEnd);
}

std::string BucketBound(double value) {
  if (value < 1e6) {
    std::string text = absl::StrCat(value);
    if (text.find('.') == std::string::npos) text += ".0";
    return text;
  }
  int exponent = 0;
  while (value >= 10) {
    value /= 10;
    ++exponent;
  }
  return absl::StrCat(value, "e+", absl::Dec(exponent, absl::kZeroPad2));
}

}  // namespace kvblocks::sim
