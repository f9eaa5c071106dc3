// A Hugging Face tokenizer.json, read by their own library.
//
// The library runs in a child process: Python with the package `tokenizers`. Requests and answers
// are lines of JSON through its pipes. It ends with this process, or when this object goes.

#ifndef KVBLOCKS_SIM_SERVE_HF_TOKENIZER_H_
#define KVBLOCKS_SIM_SERVE_HF_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kvblocks/sim/serve/tokenizer.h"

namespace kvblocks::sim {

// `python`: the interpreter, "python3" or a path. InvalidArgument says what to install where the
// package is missing, or what is wrong with the file. A process that does not answer within
// `patience` is ended with DeadlineExceeded; the next request starts another one.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeHfTokenizer(
    const std::string& file, const std::string& python,
    absl::Duration patience = absl::Seconds(60));

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_HF_TOKENIZER_H_
