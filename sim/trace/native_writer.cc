#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/convert.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/trace.pb.h"

namespace kvblocks::sim {
namespace {

namespace pb = kvblocks::trace::v1;

class NativeWriter : public TraceWriter {
 public:
  NativeWriter(std::unique_ptr<ByteSink> sink, const NativeWriterOptions& options)
      : sink_(std::move(sink)),
        options_(options),
        window_(options.copy_window, options.copy_window_ids) {}

  absl::Status Begin(const TraceInfo& info) override {
    if (info.block_tokens < 0 || info.block_tokens > kMaxTraceLength) {
      return absl::InvalidArgumentError(absl::StrCat("block_tokens: got ", info.block_tokens,
                                                     ", expected 0 to ", kMaxTraceLength));
    }
    if (options_.copy_window < 0 || options_.copy_window > kMostCopyWindow ||
        options_.copy_window_ids < 0 || options_.copy_window_ids > kMostCopyWindowIds) {
      return absl::InvalidArgumentError(absl::StrCat(
          "copy window: got ", options_.copy_window, " requests and ", options_.copy_window_ids,
          " ids, expected at most ", kMostCopyWindow, " and ", kMostCopyWindowIds));
    }
    pb::Record record;
    pb::Header& header = *record.mutable_header();
    header.set_version(1);
    header.set_name(info.name);
    header.set_source(info.source);
    header.set_license(info.license);
    header.set_block_tokens(static_cast<uint32_t>(info.block_tokens));
    header.set_scope(static_cast<pb::Header::Scope>(info.scope));
    header.set_sorted(true);
    header.set_pseudo_tokens(info.pseudo_tokens);
    header.set_num_requests(info.num_requests);
    header.mutable_notes()->insert(info.notes.begin(), info.notes.end());
    (*header.mutable_notes())["copy_window"] = absl::StrCat(options_.copy_window);
    (*header.mutable_notes())["copy_window_ids"] = absl::StrCat(options_.copy_window_ids);
    header.GetReflection()->MutableUnknownFields(&header)->ParseFromString(info.unknown_fields);
    KVBLOCKS_RETURN_IF_ERROR(sink_->Write(kNativeMagic));
    return Put(record);
  }

  absl::Status Write(const TraceRequest& request) override {
    if (request.arrival_ns < arrival_ns_) {
      return absl::InvalidArgumentError(absl::StrCat("arrival: got ", request.arrival_ns,
                                                     " ns, expected at least ", arrival_ns_));
    }
    pb::Record strings;
    pb::Record record;
    pb::Request& to = *record.mutable_request();
    to.set_id(NumberOf(request.id));
    to.set_arrival_delta_ns(request.arrival_ns - arrival_ns_);
    to.set_input_length(static_cast<uint32_t>(request.input_length));
    to.set_output_length(static_cast<uint32_t>(request.output_length));
    to.set_ids_cover_output(request.ids_cover_output);
    to.mutable_output_ids()->Assign(request.output_ids.begin(), request.output_ids.end());
    to.mutable_accepted_drafts()->Assign(request.accepted_drafts.begin(),
                                         request.accepted_drafts.end());
    to.set_min_tokens(static_cast<uint32_t>(request.min_tokens));
    if (request.encoder_tokens) {
      to.set_encoder_tokens(static_cast<uint32_t>(*request.encoder_tokens));
    }
    to.set_priority(request.priority);
    to.set_session(request.session);
    to.set_turn(request.turn);
    to.set_think_ns(static_cast<uint64_t>(request.think_ns));
    to.set_abort_after_ns(static_cast<uint64_t>(request.abort_after_ns));
    to.set_tenant(IndexOf(request.tenant, &strings));
    to.set_slo_class(IndexOf(request.slo_class, &strings));
    to.set_adapter(IndexOf(request.adapter, &strings));
    to.set_salt(IndexOf(request.salt, &strings));
    for (const int64_t row : request.waits_for) {
      const auto found = position_of_row_.find(row);
      if (found == position_of_row_.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("waits_for: got row ", row, ", expected a row written before"));
      }
      to.add_waits_for(static_cast<uint32_t>(num_requests_ - found->second));
    }
    to.GetReflection()->MutableUnknownFields(&to)->ParseFromString(request.unknown_fields);
    EncodeIds(request.content_ids, &to);

    if (strings.has_strings()) KVBLOCKS_RETURN_IF_ERROR(Put(strings));
    KVBLOCKS_RETURN_IF_ERROR(Put(record));
    position_of_row_[request.row] = num_requests_;
    arrival_ns_ = request.arrival_ns;
    ++num_requests_;
    input_tokens_ += static_cast<uint64_t>(request.input_length);
    output_tokens_ += static_cast<uint64_t>(request.output_length);
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    pb::Record record;
    pb::Footer& footer = *record.mutable_footer();
    footer.set_num_requests(static_cast<uint64_t>(num_requests_));
    footer.set_input_tokens(input_tokens_);
    footer.set_output_tokens(output_tokens_);
    footer.set_xxh64_of_records(hash_.value());
    KVBLOCKS_RETURN_IF_ERROR(Put(record));
    return sink_->Close();
  }

 private:
  absl::Status Put(const pb::Record& record) {
    std::string bytes;
    {
      // Notes are a map, whose order would be another one each time.
      google::protobuf::io::StringOutputStream stream(&bytes);
      google::protobuf::io::CodedOutputStream coded(&stream);
      coded.SetSerializationDeterministic(true);
      record.SerializeToCodedStream(&coded);
    }
    std::string framed;
    AppendRecord(bytes, &framed, &hash_);
    return sink_->Write(framed);
  }

  uint64_t NumberOf(const std::string& id) {
    uint64_t number;
    if (absl::SimpleAtoi(id, &number) && absl::StrCat(number) == id) return number;
    losses_.insert("request ids that are not decimal numbers (numbered from 2^63 on)");
    return (uint64_t{1} << 63) + static_cast<uint64_t>(num_requests_);
  }

  uint32_t IndexOf(const std::string& text, pb::Record* strings) {
    if (text.empty()) return 0;
    const auto [it, inserted] =
        strings_.try_emplace(text, static_cast<uint32_t>(strings_.size() + 1));
    if (inserted) strings->mutable_strings()->add_value(text);
    return it->second;
  }

  // Copies from the latest request that has the longest leading run of equal ids.
  void EncodeIds(const std::vector<int64_t>& ids, pb::Request* to) {
    std::vector<absl::uint128> paths(ids.size());
    absl::uint128 path = 0;
    for (size_t i = 0; i < ids.size(); ++i) paths[i] = path = PathKey(path, ids[i]);
    int64_t source = -1;
    size_t copied = 0;
    // A path's prefixes were last seen no earlier than the path itself, so the search may stop at
    // the first miss.
    for (; copied < ids.size(); ++copied) {
      const auto found = last_user_.find(paths[copied]);
      if (found == last_user_.end()) break;
      source = found->second;
    }
    if (copied > 0) {
      to->set_copy_from(static_cast<uint32_t>(num_requests_ - source));
      to->set_copy_ids(static_cast<uint32_t>(copied));
    }
    uint64_t last = copied > 0 ? static_cast<uint64_t>(ids[copied - 1]) : 0;
    to->mutable_ids()->Reserve(static_cast<int>(ids.size() - copied));
    for (size_t i = copied; i < ids.size(); ++i) {
      to->add_ids(static_cast<int64_t>(static_cast<uint64_t>(ids[i]) - last));
      last = static_cast<uint64_t>(ids[i]);
    }
    for (const absl::uint128& key : paths) last_user_[key] = num_requests_;
    window_.Push(ids, [this](int64_t request) {
      absl::uint128 key = 0;
      for (const int64_t id : *window_.Find(request)) {
        key = PathKey(key, id);
        const auto found = last_user_.find(key);
        if (found != last_user_.end() && found->second == request) last_user_.erase(found);
      }
    });
  }

  std::unique_ptr<ByteSink> sink_;
  NativeWriterOptions options_;
  IdWindow window_;
  RecordHash hash_;
  absl::flat_hash_map<absl::uint128, int64_t> last_user_;  // of each path in the window
  absl::flat_hash_map<std::string, uint32_t> strings_;
  absl::flat_hash_map<int64_t, int64_t> position_of_row_;
  int64_t arrival_ns_ = 0;
  int64_t num_requests_ = 0;
  uint64_t input_tokens_ = 0;
  uint64_t output_tokens_ = 0;
};

}  // namespace

std::unique_ptr<TraceWriter> MakeNativeWriter(std::unique_ptr<ByteSink> sink,
                                              const NativeWriterOptions& options) {
  return std::make_unique<NativeWriter>(std::move(sink), options);
}

}  // namespace kvblocks::sim
