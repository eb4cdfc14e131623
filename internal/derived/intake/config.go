package intake

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// ConfigKind is the kind of the rollups' configuration.
var ConfigKind = record.Kind{Schema: "lightmetrics.rollup_config.v1", Title: "configuration of rollups", MaxBytes: 4 << 10, Exact: true}

// ShardsError says that the configured number of shards is not that of the authority.
type ShardsError struct {
	Have, Want uint32
}

func (e *ShardsError) Error() string {
	return fmt.Sprintf("%s says %d shards, configured are %d: the number can't be changed in place", layout.RollupConfigKey, e.Have, e.Want)
}

type configObject struct {
	Shards uint32 `json:"shards"`
}

// EnsureShards fixes the authority's number of shards at its first call, and compares
// with it afterwards: *ShardsError when it differs. The store's errors are wrapped.
func EnsureShards(ctx context.Context, s objstore.Store, shards uint32) error {
	if err := shard.CheckCount(shards); err != nil {
		return err
	}
	body := MarshalConfig(shards)
	_, err := s.Create(ctx, layout.RollupConfigKey, body, objstore.PutOptions{})
	if err == nil {
		return nil
	}
	// It exists, or the outcome is unknown. Either way the record that can be read is the one that counts.
	have, rerr := ReadShards(ctx, s)
	switch {
	case errors.Is(rerr, objstore.ErrNotFound):
		return fmt.Errorf("create %q: %w", layout.RollupConfigKey, err)
	case rerr != nil:
		return rerr
	case have != shards:
		return &ShardsError{Have: have, Want: shards}
	}
	return nil
}

// ParseConfig returns the number of shards. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseConfig(b []byte) (uint32, error) {
	var c configObject
	err := ConfigKind.Unmarshal(b, &c)
	if err == nil {
		err = ConfigKind.Wrap("", shard.CheckCount(c.Shards))
	}
	return c.Shards, err
}

// MarshalConfig writes the canonical JSON.
func MarshalConfig(shards uint32) []byte { return ConfigKind.Marshal(configObject{shards}) }

// ReadShards returns the authority's number of shards; objstore.ErrNotFound when it is not fixed yet.
func ReadShards(ctx context.Context, s objstore.Reader) (uint32, error) {
	shards, _, err := record.Read(ctx, s, layout.RollupConfigKey, ConfigKind, ParseConfig)
	return shards, err
}
