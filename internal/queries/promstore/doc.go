// Package promstore shows internal/queries/live and internal/queries/published to the Prometheus query engine: a
// storage.Queryable over one snapshot, and one view of each hour's blocks, so that
// everything a query reads is of one version and every record is read once.
package promstore
