#include "attention/ops/checks.h"
