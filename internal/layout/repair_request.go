package layout

import (
	"strings"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// RepairRequestsPrefix is where operators' requests to rebuild published hours are.
const RepairRequestsPrefix = RollupPrefix + "repair-requests/"

// RepairRequest is the key of the request to rebuild a shard's hour.
func RepairRequest(h timegrid.Hour, s shard.ID) string {
	return RepairRequests(s) + strings.TrimSuffix(sampleHour(h), "/") + ".json"
}

// RepairRequests is the prefix of a shard's requests, in the order of hours.
func RepairRequests(s shard.ID) string { return RepairRequestsPrefix + "shard=" + s.String() + "/" }

// ParseRepairRequest inverts RepairRequest.
func ParseRepairRequest(key string) (timegrid.Hour, shard.ID, error) {
	s, rest, err := cutShard(key, RepairRequestsPrefix)
	if err != nil {
		return 0, 0, notAKey(key, "repair-requests")
	}
	dir, ok := strings.CutSuffix(rest, ".json")
	if !ok {
		return 0, 0, notAKey(key, "repair-requests")
	}
	h, rest, err := cutHour(dir + "/")
	if err != nil || rest != "" || RepairRequest(h, s) != key {
		return 0, 0, notAKey(key, "repair-requests")
	}
	return h, s, nil
}
