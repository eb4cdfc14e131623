package layout

import (
	"strings"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// RollupOrdersPrefix is where operators' orders to make published hours anew are.
const RepairRequestsPrefix = RollupPrefix + "repair-requests/"

// RollupOrder is the key of the order to make a shard's hour anew.
func RepairRequest(h timegrid.Hour, s shard.ID) string {
	return RepairRequests(s) + strings.TrimSuffix(sampleHour(h), "/") + ".json"
}

// RollupOrders is the prefix of a shard's orders, in the order of hours.
func RepairRequests(s shard.ID) string { return RepairRequestsPrefix + "shard=" + s.String() + "/" }

// ParseRollupOrder inverts RollupOrder.
func ParseRepairRequest(key string) (timegrid.Hour, shard.ID, error) {
	s, rest, err := cutShard(key, RepairRequestsPrefix)
	if err != nil {
		return 0, 0, notAKey(key, "orders")
	}
	dir, ok := strings.CutSuffix(rest, ".json")
	if !ok {
		return 0, 0, notAKey(key, "orders")
	}
	h, rest, err := cutHour(dir + "/")
	if err != nil || rest != "" || RepairRequest(h, s) != key {
		return 0, 0, notAKey(key, "orders")
	}
	return h, s, nil
}
