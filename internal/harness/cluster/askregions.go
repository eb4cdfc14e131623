package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
)

// RegionsAnswer is the answer to an instant query over several regions.
type RegionsAnswer struct {
	// Value of the first sample; empty where there is none.
	Value   string
	Partial bool
	Regions []RegionAnswer
}

// RegionAnswer says how one region is in an answer.
type RegionAnswer struct {
	Name string `json:"region"`
	// Reason why the region is not in the answer; empty where it is.
	Reason string `json:"reason"`
	// Partial, CompleteThrough: of the region's own part.
	Partial         bool   `json:"partial"`
	CompleteThrough string `json:"complete_through"`
}

// Missing are the names of the regions that are not in the answer, sorted.
func (a *RegionsAnswer) Missing() (names []string) {
	for _, r := range a.Regions {
		if r.Reason != "" {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

// AskRegions asks the query service over the Prometheus HTTP API, now, and reads what the answer says of each region.
func (c *Cluster) AskRegions(ctx context.Context, expression string) (*RegionsAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr.QueryHTTP+"/api/v1/query?query="+url.QueryEscape(expression), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	var body struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
		Lightmetrics struct {
			Partial bool           `json:"partial"`
			Regions []RegionAnswer `json:"regions"`
		} `json:"lightmetrics"`
	}
	if err := json.Unmarshal(b, &body); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("query %s: %s: %.300s (%v)", expression, resp.Status, b, err)
	}
	a := &RegionsAnswer{Partial: body.Lightmetrics.Partial, Regions: body.Lightmetrics.Regions}
	if len(body.Data.Result) > 0 {
		a.Value = fmt.Sprint(body.Data.Result[0].Value[1])
	}
	return a, nil
}
