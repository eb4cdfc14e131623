package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/shard"
)

// ConfigSchema names the JSON schema of the rollups' configuration.
const ConfigSchema = "lightmetrics.rollup_config.v1"

const maxConfigBytes = 4 << 10

// ErrConfig: the configuration object can't be read as one.
var ErrConfig = errors.New("invalid rollup configuration")

// ShardsError is the refusal of a number of shards that is not the authority's.
type ShardsError struct {
	Have, Want uint32
}

func (e *ShardsError) Error() string {
	return fmt.Sprintf("%s says %d shards, configured are %d: the number can't be changed in place", layout.RollupConfigKey, e.Have, e.Want)
}

type configObject struct {
	Schema string `json:"schema"`
	Shards uint32 `json:"shards"`
}

// EnsureShards fixes the authority's number of shards at its first call, and compares
// with it afterwards: *ShardsError when it differs. The store's errors are wrapped.
func EnsureShards(ctx context.Context, s objstore.Store, shards uint32) error {
	if err := shard.CheckCount(shards); err != nil {
		return err
	}
	body, err := json.Marshal(configObject{ConfigSchema, shards})
	if err != nil {
		return err
	}
	_, err = s.Create(ctx, layout.RollupConfigKey, body, objstore.PutOptions{})
	if err == nil {
		return nil
	}
	// It exists, or nobody knows: what can be read decides.
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

// ReadShards gives the authority's number of shards; objstore.ErrNotFound when it is not fixed yet.
func ReadShards(ctx context.Context, s objstore.Reader) (uint32, error) {
	body, _, err := s.Get(ctx, layout.RollupConfigKey, objstore.GetOptions{Limit: maxConfigBytes})
	if err != nil {
		return 0, fmt.Errorf("read %q: %w", layout.RollupConfigKey, err)
	}
	var c configObject
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil || c.Schema != ConfigSchema || shard.CheckCount(c.Shards) != nil {
		return 0, fmt.Errorf("read %q: %w", layout.RollupConfigKey, ErrConfig)
	}
	return c.Shards, nil
}
