#pragma once

#include "phalanx/comm/communicator.h"
#include "phalanx/config/config.h"
#include "phalanx/data/data_set.h"

namespace phalanx {

/// Throws Error(usage) on all ranks, with the key and the ranks, if they have different configs:
/// they would train different models, or wait for calls that others never make. What may differ
/// from host to host (model.path, paths of data, threads) is not compared. Collective.
void require_same_config(Communicator& everyone, const Config& config);

/// Throws Error(data) on all ranks, with the rank and the file, unless all of them read the same
/// files in the same order, wherever those lie: they would train on samples twice and leave others
/// out. Compares the headers, which hold the hashes of the contents. `key`: "data.train"; `data`
/// may be null. Collective.
void require_same_data(Communicator& everyone, const std::string& key, const DataSet* data);

}  // namespace phalanx
