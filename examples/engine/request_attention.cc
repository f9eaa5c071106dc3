#include "examples/engine/request_attention.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/line_reader.h"
#include "simdjson.h"

namespace kvblocks::engine {
namespace {

namespace dom = simdjson::dom;
using attention::MaskRowBounds;

constexpr int64_t kMaxLineBytes = int64_t{64} << 20;  // a mask of 11,000 tokens

// The lengths must be those of a prompt's beginning. `rest`: tokens behind them.
absl::Status CheckLengths(const char* field, const std::vector<int64_t>& lengths,
                          int64_t num_prompt, int64_t rest) {
  int64_t left = num_prompt - rest;
  for (const int64_t length : lengths) {
    if (length >= 1 && length <= left) {
      left -= length;
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": got [", absl::StrJoin(lengths, ", "), "], expected lengths of at least 1 that ",
        "add up to at most ", num_prompt - rest, ", for a prompt of ", num_prompt, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status ReadField(std::string_view name, const dom::element& value, RequestAttention* out,
                       std::string* id) {
  const auto refuse = [&](const char* expected) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": expected ", expected));
  };
  if (name == "request_id") {
    std::string_view text;
    if (value.get(text)) return refuse("a text");
    *id = text;
  } else if (name == "keep") {
    if (value.get(out->keep)) return refuse("true or false");
  } else if (name == "mask") {
    dom::array rows;
    if (value.get(rows)) return refuse("a list of texts of 0 and 1");
    for (const dom::element row : rows) {
      std::string_view text;
      if (row.get(text)) return refuse("a list of texts of 0 and 1");
      out->mask.emplace_back(text);
    }
  } else if (name == "documents" || name == "chunks") {
    dom::array lengths;
    if (value.get(lengths)) return refuse("a list of lengths");
    for (const dom::element length : lengths) {
      int64_t tokens = 0;
      if (length.get(tokens)) return refuse("a list of lengths");
      (name == "chunks" ? out->chunks : out->documents).push_back(tokens);
    }
  } else {
    return refuse("one of request_id, documents, mask, chunks, keep in its place");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RequestAttention::Check(int64_t num_prompt) const {
  if (!documents.empty() + !mask.empty() + blends() > 1) {
    return absl::InvalidArgumentError(
        "got two of documents, a mask, and chunks, expected one: what is kept or blended has been "
        "computed without a mask");
  }
  absl::Status status = CheckLengths("documents", documents, num_prompt, 0);
  // The last token's logits are wanted.
  status.Update(CheckLengths("chunks", chunks, num_prompt, 1));
  if (mask.empty() || !status.ok()) return status;
  if (static_cast<int64_t>(mask.size()) != num_prompt) {
    return absl::InvalidArgumentError(absl::StrCat("mask: got ", mask.size(),
                                                   " rows, expected one for each of ", num_prompt,
                                                   " tokens of the prompt"));
  }
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i].size() == i + 1 && mask[i].back() == '1' &&
        mask[i].find_first_not_of("01") == std::string::npos) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("mask: got row ", i, " of ", mask[i].size(), " characters, expected ", i + 1,
                     " of 0 and 1, the last one 1: a token sees itself"));
  }
  return absl::OkStatus();
}

std::string RequestAttention::Salt(int64_t row, int64_t num_prompt) const {
  if (!documents.empty()) {
    // Where nothing is behind the last document, what is sampled belongs to it.
    const int64_t sum = std::accumulate(documents.begin(), documents.end(), int64_t{0});
    return absl::StrCat("documents ", absl::StrJoin(documents, " "),
                        sum == num_prompt ? " on" : "");
  }
  if (!mask.empty()) return absl::StrCat("mask ", absl::StrJoin(mask, " "));
  // What a blend leaves is good for nobody else.
  return chunks.empty() ? "" : absl::StrCat("blend ", row);
}

attention::MaskRule RequestAttention::Rule(int64_t num_prompt, int64_t window) const {
  // Per token of the prompt, the first that it may see.
  std::vector<int64_t> first(static_cast<size_t>(num_prompt));
  int64_t begin = 0;
  for (const int64_t length : documents) {
    std::fill_n(first.begin() + begin, length, begin);
    begin += length;
  }
  attention::MaskRule rule;
  rule.bounds = [=, this, first = std::move(first)](int64_t i, std::string_view) {
    const int64_t of_window = window > 0 ? i - window + 1 : 0;
    MaskRowBounds row;
    row.begin = std::max(of_window, first[static_cast<size_t>(std::min(i, num_prompt - 1))]);
    row.seen_begin = mask.empty() ? row.begin : std::max(row.begin, num_prompt);
    row.seen_end = row.end = i + 1;
    return row;
  };
  rule.hides = [this, num_prompt](int64_t i, int64_t j, std::string_view) {
    return mask[static_cast<size_t>(std::min(i, num_prompt - 1))][static_cast<size_t>(j)] == '0';
  };
  return rule;
}

absl::StatusOr<RequestAttentions> ReadRequestAttentions(const std::string& path) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto source, sim::OpenByteSource(path));
  sim::LineReader lines(std::move(source), kMaxLineBytes);
  RequestAttentions all;
  dom::parser parser;
  sim::Line line;
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, lines.Next(&line));
    if (!more) return all;
    if (line.text.empty() && !line.too_long) continue;
    const auto refuse = [&](std::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", line.number, ": ", std::string(why)));
    };
    if (line.too_long) {
      return refuse(absl::StrCat("got ", line.bytes, " bytes, expected at most ", kMaxLineBytes));
    }
    dom::object object;
    if (parser.parse(line.text).get(object)) return refuse("expected one JSON object");
    RequestAttention one;
    std::string id;
    for (const auto [name, value] : object) {
      const absl::Status status = ReadField(name, value, &one, &id);
      if (!status.ok()) return refuse(std::string(status.message()));
    }
    if (id.empty()) return refuse("request_id: got none, expected that of a request");
    if (!all.emplace(id, std::move(one)).second) {
      return refuse(absl::StrCat("request_id: got ", id, " again, expected one line for each"));
    }
  }
}

}  // namespace kvblocks::engine
