package ingest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
)

// finding is what a probe found beside the store's semantics.
type finding struct {
	authority accept.Authority
	policy    policyFinding
	at        time.Time
}

// policyFinding is what the probe of the bucket's policy found.
type policyFinding struct {
	// state is "held", "violated", "unknown" (the store did not answer) or "off".
	state string
	// violations are the checks that failed, with the reason.
	violations []string
}

// policyPage explains what to do.
const policyPage = "docs/runbook/ingest-store-unguarded.md"

// probePolicy probes the bucket's policy. Its error, which only store.policy require gives, is
// that of a store that does not qualify.
func (s *Service) probePolicy(ctx context.Context, runID string) (policyFinding, error) {
	if s.cfg.Store.BucketPolicy == policyOff {
		return policyFinding{state: "off"}, nil
	}
	report, err := qualify.Policy(ctx, s.store, qualify.Options{RunID: runID, Now: s.now})
	f := policyFinding{state: "held"}
	switch {
	case err == nil:
		return f, nil
	// A store that is slow for a moment has shown nothing: what was found before still counts.
	case qualify.Unanswered(err):
		f.state = "unknown"
		if last := s.found.Load(); last != nil {
			f = last.policy
		}
	default:
		f.state = "violated"
		for _, row := range report.Rows {
			if row.Status == qualify.Fail {
				f.violations = append(f.violations, strings.TrimPrefix(row.Check, "policy: ")+": "+row.Detail)
			}
		}
	}
	if s.cfg.Store.BucketPolicy == policyRequire {
		return f, fmt.Errorf("store.policy is require (%s): %w", policyPage, err)
	}
	if f.state == "violated" {
		s.tel.Log.Warn("the bucket's policy does not keep acceptance records from being changed", "error", err, "page", policyPage)
	} else {
		s.tel.Log.Warn("the bucket's policy could not be probed", "error", err)
	}
	return f, nil
}
