// Package regions asks the query nodes of other regions. Each region is one connection; a query has one stream in each, whose
// answers all come from one snapshot. A region that is away, late or wrong is left out of the answer, with a reason. Nothing is
// asked twice: the deadline is short, and a second question to a region that is late makes it later.
package regions

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// Region is another region's query service.
type Region struct {
	Name     claims.Region    `koanf:"name" help:"the region's name"`
	Endpoint string           `koanf:"endpoint" help:"gRPC address of the query service of the region" check:"address"`
	Timeout  time.Duration    `koanf:"timeout" help:"longest wait for an answer of the region; 0 is fanout.timeout"`
	Client   rpc.ClientConfig `koanf:"client"`
}

// Config of questions to other regions, and of answers to them.
type Config struct {
	Default     string        `koanf:"default" help:"regions that a query reads which names none: all or local"`
	Timeout     time.Duration `koanf:"timeout" help:"longest wait for each answer of another region; without it the region is not in the answer"`
	Bytes       config.Bytes  `koanf:"bytes" help:"most bytes that one query takes of each other region"`
	Concurrency int           `koanf:"concurrency" help:"queries that read of one other region at once; others wait, at most fanout.timeout"`
	Serve       int           `koanf:"serve" help:"queries of other regions that this node answers at once, beside limits.concurrency"`
}

// Defaults of queries that name no region.
const (
	All   = "all"
	Local = "local"
)

// DefaultConfig reads all regions.
func DefaultConfig() Config {
	return Config{Default: All, Timeout: 10 * time.Second, Bytes: 256 << 20, Concurrency: 20, Serve: 20}
}

// maxRegions bounds the regions of a deployment, as the linearizer does.
const maxRegions = 16

// Validate checks the settings of a node of region own.
func Validate(own claims.Region, others []Region, c Config) error {
	var errs []error
	if c.Default != All && c.Default != Local {
		errs = append(errs, fmt.Errorf("fanout.default: %q: want %s or %s", c.Default, All, Local))
	}
	if c.Timeout <= 0 || c.Bytes <= 0 || c.Concurrency <= 0 || c.Serve <= 0 {
		errs = append(errs, errors.New("fanout: every limit must be greater than 0"))
	}
	if own != "" {
		errs = append(errs, named("region", own))
	}
	if len(others) == 0 {
		return errors.Join(errs...)
	}
	if own == "" {
		errs = append(errs, errors.New("regions: need region, the name of this one"))
	}
	if len(others) >= maxRegions {
		errs = append(errs, fmt.Errorf("regions: %d, at most %d beside this one", len(others), maxRegions-1))
	}
	seen := map[claims.Region]bool{own: true}
	for i, r := range others {
		at := fmt.Sprintf("regions[%d]", i)
		errs = append(errs, named(at+".name", r.Name))
		if seen[r.Name] {
			errs = append(errs, fmt.Errorf("%s.name: %s is there twice, or the name of this region", at, r.Name))
		}
		seen[r.Name] = true
		if err := config.CheckAddress(r.Endpoint); err != nil {
			errs = append(errs, fmt.Errorf("%s.endpoint: %w", at, err))
		}
		if r.Timeout < 0 {
			errs = append(errs, fmt.Errorf("%s.timeout: must not be negative; 0 is fanout.timeout", at))
		}
		if err := r.Client.Check(); err != nil {
			errs = append(errs, fmt.Errorf("%s.client: %w", at, err))
		}
	}
	return errors.Join(errs...)
}

func named(at string, r claims.Region) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	// Words of requests.
	if r == All || r == Local {
		return fmt.Errorf("%s: %q means something else in a request", at, r)
	}
	return nil
}
