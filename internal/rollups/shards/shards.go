// Package shards is the record of the authority's number of shards. Agents are spread over them for ever, so whoever says
// the number first fixes it.
package shards

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Kind is the kind of the rollups' configuration.
var Kind = record.Kind{Schema: "lightmetrics.rollup_config.v1", Title: "configuration of rollups", MaxBytes: 4 << 10, Exact: true}

// CountError says that the configured number of shards is not that of the authority.
type CountError struct {
	Have, Want uint32
}

func (e *CountError) Error() string {
	return fmt.Sprintf("%s says %d shards, configured are %d: the number can't be changed in place", layout.RollupConfigKey, e.Have, e.Want)
}

type configObject struct {
	Shards uint32 `json:"shards"`
}

// Store is what Ensure needs of the object store.
type Store interface {
	objstore.Getter
	objstore.Creator
}

// Ensure fixes the authority's number of shards at its first call, and compares
// with it afterwards: *CountError when it differs. The store's errors are wrapped.
func Ensure(ctx context.Context, s Store, shards uint32) error {
	if err := shard.CheckCount(shards); err != nil {
		return err
	}
	body := Marshal(shards)
	_, err := s.Create(ctx, layout.RollupConfigKey, body, objstore.PutOptions{})
	if err == nil {
		return nil
	}
	// It exists, or the outcome is unknown. Either way the record that can be read is the one that counts.
	have, rerr := Read(ctx, s)
	switch {
	case errors.Is(rerr, objstore.ErrNotFound):
		return fmt.Errorf("create %q: %w", layout.RollupConfigKey, err)
	case rerr != nil:
		return rerr
	case have != shards:
		return &CountError{Have: have, Want: shards}
	}
	return nil
}

// Parse returns the number of shards. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(b []byte) (uint32, error) {
	var c configObject
	err := Kind.Unmarshal(b, &c)
	if err == nil {
		err = Kind.Wrap("", shard.CheckCount(c.Shards))
	}
	return c.Shards, err
}

// Marshal writes the canonical JSON.
func Marshal(shards uint32) []byte { return Kind.Marshal(configObject{shards}) }

// Read returns the authority's number of shards; objstore.ErrNotFound when it is not fixed yet.
func Read(ctx context.Context, s objstore.Getter) (uint32, error) {
	shards, _, err := record.Read(ctx, s, layout.RollupConfigKey, Kind, Parse)
	return shards, err
}
