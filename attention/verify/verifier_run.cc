#include "attention/verify/verifier_run.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

VerifierRun::VerifierRun(VerifierOptions options)
    : options_(std::move(options)),
      values_(options_.seed),
      num_holders_(static_cast<size_t>(options_.num_blocks)),
      builders_(options_.groups.size()),
      batch_rows_(options_.groups.size()) {
  context_.threads = options_.threads;
}

// Sink tokens are learned: written once, before any request.
void VerifierRun::WriteSinkRows() {
  sink_rows_.resize(layers_.size());
  const Held nobody;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    const size_t floats = static_cast<size_t>(Shape(group).floats());
    const int64_t num_rows = NumSinkRows(group);
    sink_rows_[layer].resize(static_cast<size_t>(num_rows) * floats);
    for (int64_t row = 0; row < num_rows; ++row) {
      float* plain = sink_rows_[layer].data() + static_cast<size_t>(row) * floats;
      values_.Fill(static_cast<uint64_t>(row), static_cast<int64_t>(layer),
                   TokenValueKind::kSinkToken, absl::MakeSpan(plain, floats));
      memory_.Write(layer, BlockOfRow(layers_[layer].group, nobody, row), row % BlockRows(group),
                    plain);
    }
  }
}

// --- Where things are ---

int64_t VerifierRun::FirstVisible(const VerifiedGroup& group, int64_t position) const {
  if (group.window > 0) return std::max<int64_t>(0, position - group.window + 1);
  return group.chunk > 0 ? position / group.chunk * group.chunk : 0;
}

int32_t VerifierRun::BlockOfRow(size_t g, const Held& held, int64_t row) const {
  const VerifiedGroup& group = options_.groups[g];
  const int64_t num_sink_rows = NumSinkRows(group);
  if (row < num_sink_rows) return group.sink_blocks[static_cast<size_t>(row / BlockRows(group))];
  return held.tables[g][static_cast<size_t>((row - num_sink_rows) / BlockRows(group))];
}

std::string VerifierRun::LayerName(size_t layer) const {
  return absl::StrCat("layer ", layer, " (", GroupOf(layer).name, ")");
}

const float* VerifierRun::PlainRow(size_t layer, const Held& held, int64_t row) const {
  return held.rows[layer].data() + row * Shape(GroupOf(layer)).floats();
}

bool VerifierRun::IsAsWritten(size_t layer, const Held& held, int64_t row) const {
  return memory_.Equals(layer, BlockOfRow(layers_[layer].group, held, row),
                        row % BlockRows(GroupOf(layer)), PlainRow(layer, held, row));
}

// --- Steps ---

absl::Status VerifierRun::OnStep(absl::Span<const VerifiedRequest> requests) {
  if (failure_) return absl::DataLossError(failure_->text);
  KVBLOCKS_RETURN_IF_ERROR(CheckStep(requests));
  TakeParts(requests);
  Settle();
  KVBLOCKS_RETURN_IF_ERROR(CheckTables());
  MakeRoom();
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    KVBLOCKS_RETURN_IF_ERROR(BuildMetadata(g));
  }
  // Of states, too, the step reads those that earlier steps left.
  for (const Part& part : parts_) {
    KVBLOCKS_RETURN_IF_ERROR(ReadStates(part));
  }
  for (const Part& part : parts_) {
    KVBLOCKS_RETURN_IF_ERROR(WriteStates(part));
  }
  // All rows of the step are there before any is read: a request may hit blocks that another one
  // computes in the same step.
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    KVBLOCKS_RETURN_IF_ERROR(WriteRows(g));
  }
  for (const Part& part : parts_) {
    KVBLOCKS_RETURN_IF_ERROR(ReadBack(part));
  }
  ChooseQueries();
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    KVBLOCKS_RETURN_IF_ERROR(Attend(g));
  }
  for (size_t joint = 0; joint < joints_.size(); ++joint) {
    KVBLOCKS_RETURN_IF_ERROR(AttendJointly(joint));
  }
  for (const VerifiedCompressor& compressor : options_.compressors) {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (layers_[layer].group != compressor.states_group) continue;
      KVBLOCKS_RETURN_IF_ERROR(Compress(compressor, layer));
    }
  }
  ++stats_.num_steps;
  return absl::OkStatus();
}

absl::Status VerifierRun::CopyBlocks(absl::Span<const VerifiedCopy> copies) {
  if (failure_) return absl::DataLossError(failure_->text);
  for (const VerifiedCopy& copy : copies) {
    for (const int32_t block : {copy.source, copy.target}) {
      if (block > kNullBlock && block < options_.num_blocks) continue;
      return InvalidArgument("CopyBlocks: got block ", block, ", expected 1 to ",
                             options_.num_blocks - 1);
    }
  }
  for (const VerifiedCopy& copy : copies) memory_.Copy(copy.source, copy.target);
  stats_.num_blocks_copied += static_cast<int64_t>(copies.size());
  return absl::OkStatus();
}

absl::Status VerifierRun::CheckStep(absl::Span<const VerifiedRequest> requests) const {
  absl::flat_hash_set<uint64_t> ids;
  for (const VerifiedRequest& request : requests) {
    const std::string name = absl::StrCat("OnStep: request ", std::string(request.name));
    if (!ids.insert(request.id).second) {
      return InvalidArgument(name, " is in the step twice");
    }
    if (request.num_scheduled < 1 || request.num_computed < 0) {
      return InvalidArgument(name, ": got ", request.num_scheduled, " scheduled and ",
                             request.num_computed, " computed tokens, expected at least 1 and 0");
    }
    const int64_t num_tokens = static_cast<int64_t>(request.tokens.size());
    if (num_tokens < request.num_computed ||
        num_tokens - request.num_computed < request.num_scheduled) {
      return InvalidArgument(name, ": got ", num_tokens, " token ids, expected ",
                             request.num_computed, " computed and ", request.num_scheduled,
                             " scheduled ones");
    }
    if (request.block_tables.size() != options_.groups.size()) {
      return InvalidArgument(name, ": got ", request.block_tables.size(),
                             " block tables, expected ", options_.groups.size());
    }
    for (const VerifiedCheckpoint& checkpoint : request.checkpoints) {
      const bool is_known =
          checkpoint.group < options_.groups.size() && options_.groups[checkpoint.group].is_state;
      if (!is_known || checkpoint.num_tokens <= request.num_computed ||
          checkpoint.num_tokens > request.num_computed + request.num_scheduled ||
          checkpoint.block <= kNullBlock || checkpoint.block >= options_.num_blocks) {
        return InvalidArgument(name, ": got a checkpoint of group ", checkpoint.group, " behind ",
                               checkpoint.num_tokens, " tokens in block ", checkpoint.block,
                               ", expected a group of states, tokens of the step and a block");
      }
    }
    const auto it = held_.find(request.id);
    if (it != held_.end() && it->second->num_tokens() != request.num_computed) {
      return InvalidArgument(name, ": got ", request.num_computed,
                             " computed tokens, but steps so far made ", it->second->num_tokens(),
                             "; call Rollback or Release in between");
    }
    const int64_t num_encoder_tokens = static_cast<int64_t>(request.encoder_tokens.size());
    if (it != held_.end() && it->second->num_encoder_tokens != num_encoder_tokens) {
      return InvalidArgument(name, ": got ", num_encoder_tokens, " tokens of the encoder, but it ",
                             "came in with ", it->second->num_encoder_tokens);
    }
  }
  return absl::OkStatus();
}

void VerifierRun::TakeParts(absl::Span<const VerifiedRequest> requests) {
  parts_.clear();
  for (const VerifiedRequest& request : requests) {
    std::unique_ptr<Held>& held = held_[request.id];
    Part part{.id = request.id,
              .num_computed = request.num_computed,
              .is_new = held == nullptr,
              .index = parts_.size(),
              .checkpoints = request.checkpoints};
    if (part.is_new) {
      held = std::make_unique<Held>();
      held->name = std::string(request.name);
      held->tables.resize(options_.groups.size());
      held->rows = sink_rows_;
      stats_.num_hit_tokens += request.num_computed;
      FillEncoderRows(*held, request.salt, request.encoder_tokens);
    }
    part.held = held.get();
    part.changed = part.is_new;
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      part.changed |= ReplaceTable(part, g, request.block_tables[g]);
    }
    AppendTokens(
        *held, request.salt,
        request.tokens.first(static_cast<size_t>(request.num_computed + request.num_scheduled)));
    stats_.num_tokens += request.num_scheduled;
    parts_.push_back(part);
  }
}

// Returns whether it differs.
bool VerifierRun::ReplaceTable(const Part& part, size_t g, absl::Span<const int32_t> table) {
  std::vector<int32_t>& held = part.held->tables[g];
  if (absl::MakeConstSpan(held) == table) return false;
  const VerifiedGroup& group = options_.groups[g];
  for (size_t i = 0; i < std::max(held.size(), table.size()); ++i) {
    const int32_t before = i < held.size() ? held[i] : kNullBlock;
    const int32_t now = i < table.size() ? table[i] : kNullBlock;
    if (before == now) continue;
    left_.push_back(before);
    bool is_new = static_cast<int64_t>(i) * group.block_size >= part.num_computed;
    if (group.is_cross) is_new = true;  // written by the request itself
    if (group.is_state) {
      // Of what a request comes in with, the last state counts; later ones move along.
      const bool is_hit = part.is_new && part.num_computed > 0 &&
                          static_cast<int64_t>(i) == (part.num_computed - 1) / group.block_size;
      is_new = !is_hit && std::find(held.begin(), held.end(), now) == held.end();
    }
    appeared_.push_back({now, part.id, g, is_new || group.num_layers == 0});
  }
  held.assign(table.begin(), table.end());
  return true;
}

// Counts holders anew and makes void what went. Ids outside the pool are left to CheckTables.
void VerifierRun::Settle() {
  const auto is_block = [&](int32_t id) { return id > kNullBlock && id < options_.num_blocks; };
  for (const int32_t block : left_) {
    if (is_block(block)) --num_holders_[static_cast<size_t>(block)];
  }
  for (const Appearance& a : appeared_) {
    if (!is_block(a.block)) continue;
    ++num_holders_[static_cast<size_t>(a.block)];
    memory_.SetGroup(a.block, a.group);
    if (a.is_new) {
      memory_.Record(
          a.block,
          {.step = stats_.num_steps, .request = a.request, .event = BlockEvent::kHandedOut},
          options_.poison);
    }
  }
  for (const int32_t block : left_) {
    if (!is_block(block) || num_holders_[static_cast<size_t>(block)] > 0) continue;
    if (memory_.history(block).event == BlockEvent::kLost) continue;  // listed twice
    if (options_.use_of_block && options_.use_of_block(block) != BlockUse::kFree) continue;
    memory_.Record(block, {.step = stats_.num_steps, .event = BlockEvent::kLost}, options_.poison);
  }
  left_.clear();
  appeared_.clear();
  stats_.num_blocks_poisoned = memory_.num_poisoned();
}

absl::Status VerifierRun::CheckTables() {
  for (const Part& part : parts_) {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (layers_[layer].index != 0) continue;  // once per group
      const VerifiedGroup& group = GroupOf(layer);
      const int64_t num_tokens =
          group.is_cross ? part.held->num_encoder_tokens : part.held->num_tokens();
      const int64_t last = CeilDiv(num_tokens, group.block_size) - 1;
      const auto size = static_cast<int64_t>(part.held->tables[layers_[layer].group].size());
      if (group.is_cross && size > last + 1) {
        return Fail(
            {.request = part.held->name,
             .layer = static_cast<int64_t>(layer),
             .block = part.held->tables[layers_[layer].group][static_cast<size_t>(last + 1)],
             .text = absl::StrCat("the block table has ", size, " entries, but the ", num_tokens,
                                  " rows of the encoder take ", last + 1,
                                  ": blocks were taken more than once")});
      }
      const int64_t first_visible = FirstVisible(group, part.num_computed);
      for (int64_t i = first_visible / group.block_size; i <= last; ++i) {
        const int64_t token = std::max(i * group.block_size, first_visible);
        if (group.is_state) {
          const bool is_read =
              part.num_computed > 0 && i == (part.num_computed - 1) / group.block_size;
          const bool is_written =
              i == last || (group.at_boundaries && (i + 1) * group.block_size > part.num_computed);
          if (!is_read && !is_written) continue;
        }
        KVBLOCKS_RETURN_IF_ERROR(CheckEntry(part, layer, i, token));
      }
    }
  }
  return absl::OkStatus();
}

// That an entry of the layer's table, in which a token lies, names a block that the request may
// use.
absl::Status VerifierRun::CheckEntry(const Part& part, size_t layer, int64_t i, int64_t token) {
  const std::vector<int32_t>& table = part.held->tables[layers_[layer].group];
  const bool is_there = i < static_cast<int64_t>(table.size());
  const int32_t block = is_there ? table[static_cast<size_t>(i)] : -1;
  const bool is_block = block > kNullBlock && block < options_.num_blocks;
  const BlockUse use =
      is_block && options_.use_of_block ? options_.use_of_block(block) : BlockUse::kHeld;
  const bool is_page = !is_block || memory_.IsPage(layer, block);
  if (is_block && is_page && use == BlockUse::kHeld) return absl::OkStatus();
  std::string text = absl::StrCat("token ", token);
  if (GroupOf(layer).is_cross) {
    absl::StrAppend(&text, " of the encoder is in reach of every query");
  } else if (token < part.num_computed) {
    absl::StrAppend(&text, " is in reach of the query at ", part.num_computed);
  } else {
    absl::StrAppend(&text, " is computed in this step");
  }
  absl::StrAppend(&text, ", but entry ", i, " of the block table ");
  if (!is_there) {
    absl::StrAppend(&text, "is missing: it has ", table.size());
  } else if (block == kNullBlock) {
    absl::StrAppend(&text, "is the null block, 0");
  } else if (!is_page) {
    absl::StrAppend(&text, "is ", block, ", which is no page of this group's size: its chunk has ",
                    memory_.Map(layer).pages_per_chunk, " of them");
  } else if (is_block) {
    absl::StrAppend(&text, "is ", block, ", which the engine counts as free",
                    use == BlockUse::kCached ? " and cached" : "");
  } else {
    absl::StrAppend(&text, "is ", block, ", outside the pool of ", options_.num_blocks);
  }
  return Fail({.request = part.held->name,
               .layer = static_cast<int64_t>(layer),
               .position = part.num_computed,
               .key_position = token,
               .block = block,
               .text = std::move(text)});
}

// An encoder sees all of its input at each token.
void VerifierRun::FillEncoderRows(Held& held, uint64_t salt,
                                      absl::Span<const int64_t> tokens) {
  held.num_encoder_tokens = static_cast<int64_t>(tokens.size());
  uint64_t input = values_.EmptyPrefix(salt);
  for (const int64_t token : tokens) input = TokenValues::Extend(input, token);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (!GroupOf(layer).is_cross) continue;
    const size_t floats = static_cast<size_t>(Shape(GroupOf(layer)).floats());
    held.rows[layer].resize(tokens.size() * floats);
    for (size_t i = 0; i < tokens.size(); ++i) {
      values_.Fill(TokenValues::Extend(input, static_cast<int64_t>(i)),
                   static_cast<int64_t>(layer), TokenValueKind::kKeyAndValue,
                   absl::MakeSpan(held.rows[layer]).subspan(i * floats, floats));
    }
  }
}

void VerifierRun::AppendTokens(Held& held, uint64_t salt, absl::Span<const int64_t> tokens) {
  std::vector<uint64_t>& prefixes = held.prefixes;
  uint64_t prefix = prefixes.empty() ? values_.EmptyPrefix(salt) : prefixes.back();
  for (size_t i = prefixes.size(); i < tokens.size(); ++i) {
    prefixes.push_back(prefix = TokenValues::Extend(prefix, tokens[i]));
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (group.is_state || group.is_cross) continue;
    const int64_t floats = Shape(group).floats();
    std::vector<float>& rows = held.rows[layer];
    const int64_t first = static_cast<int64_t>(rows.size()) / floats;
    const int64_t end = NumRows(group, held.num_tokens());
    rows.resize(static_cast<size_t>(end * floats));
    for (int64_t row = first; row < end; ++row) {
      values_.Fill(prefixes[static_cast<size_t>(TokenOfRow(group, row))],
                   static_cast<int64_t>(layer), TokenValueKind::kKeyAndValue,
                   absl::MakeSpan(rows.data() + row * floats, static_cast<size_t>(floats)));
    }
  }
}

// What a request comes in with, and of an encoder what its first step wrote, in each later one.
absl::Status VerifierRun::ReadBack(const Part& part) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (group.is_state) continue;  // read at the start of every step
    if (group.is_cross == part.is_new) continue;
    const int64_t end = RowsSeen(group, *part.held, part.num_computed);
    const int64_t first = std::max(NumSinkRows(group), FirstVisible(group, part.num_computed));
    int64_t& count = group.is_cross ? stats_.num_encoder_rows_read : stats_.num_rows_read_back;
    for (int64_t row = first; row < end; ++row) {
      ++count;
      if (!IsAsWritten(layer, *part.held, row)) {
        return WrongRow(layer, part, row);
      }
    }
  }
  return absl::OkStatus();
}

// --- Between steps ---

absl::Status VerifierRun::Rollback(uint64_t request, int64_t num_tokens) {
  if (failure_) return absl::DataLossError(failure_->text);
  const auto it = held_.find(request);
  if (it == held_.end() || num_tokens < 0 || num_tokens > it->second->num_tokens()) {
    return InvalidArgument("Rollback: request ", NameOf(request), " to ", num_tokens,
                           " tokens, but it has ",
                           it == held_.end() ? 0 : it->second->num_tokens());
  }
  Held& held = *it->second;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (group.is_cross) continue;
    if (group.is_state) {
      // Kernels keep the state behind each draft in a block of its own, and go on with that of the
      // last one accepted.
      const std::vector<int32_t>& table = held.tables[layers_[layer].group];
      const int64_t entry = (num_tokens - 1) / group.block_size;
      if (num_tokens == 0 || num_tokens == held.num_tokens() ||
          entry >= static_cast<int64_t>(table.size())) {
        continue;
      }
      const int32_t block = table[static_cast<size_t>(entry)];
      if (block > kNullBlock && block < options_.num_blocks && memory_.IsPage(layer, block)) {
        WriteState(layer, held, num_tokens, block);
      }
      continue;
    }
    const int64_t kept = NumRows(group, num_tokens);
    for (int64_t row = kept; options_.poison && row < NumRows(group, held.num_tokens()); ++row) {
      // Entries out of sight may be anything.
      const int32_t block = BlockOfRow(layers_[layer].group, held, row);
      if (block <= kNullBlock || block >= options_.num_blocks) continue;
      memory_.PoisonRow(layer, block, row % BlockRows(group));
    }
    held.rows[layer].resize(static_cast<size_t>(kept * Shape(group).floats()));
  }
  held.prefixes.resize(static_cast<size_t>(num_tokens));
  return absl::OkStatus();
}

absl::Status VerifierRun::Release(uint64_t request) {
  if (failure_) return absl::DataLossError(failure_->text);
  const auto it = held_.find(request);
  if (it == held_.end()) return absl::OkStatus();
  for (const std::vector<int32_t>& table : it->second->tables) {
    left_.insert(left_.end(), table.begin(), table.end());
  }
  held_.erase(it);
  Settle();
  return absl::OkStatus();
}

absl::Status VerifierRun::Drop(absl::Span<const int32_t> blocks) {
  if (failure_) return absl::DataLossError(failure_->text);
  for (const int32_t block : blocks) {
    if (block < 0 || block >= options_.num_blocks) {
      return InvalidArgument("Drop: block ", block, " is outside the pool of ",
                             options_.num_blocks);
    }
  }
  for (const int32_t block : blocks) {
    if (block == kNullBlock) continue;
    memory_.Record(block, {.step = stats_.num_steps, .event = BlockEvent::kDropped},
                   options_.poison);
  }
  stats_.num_blocks_poisoned = memory_.num_poisoned();
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
