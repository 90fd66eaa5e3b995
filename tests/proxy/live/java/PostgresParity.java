// What the JDBC driver of Postgres does of its own: run as `java -cp postgresql.jar PostgresParity.java URL`.
import java.io.StringReader;
import java.sql.*;
import org.postgresql.PGConnection;

public class PostgresParity {
    static void must(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
        System.out.println("ok " + what);
    }

    static int one(Connection session, String query) throws SQLException {
        try (Statement s = session.createStatement(); ResultSet rows = s.executeQuery(query)) {
            rows.next();
            return rows.getInt(1);
        }
    }

    // Past prepareThreshold (5) the driver names its statements, and asks for binary values.
    static void prepared(Connection session) throws SQLException {
        try (PreparedStatement s = session.prepareStatement("SELECT ?::int + 1, ?::text")) {
            boolean right = true;
            for (int n = 0; n < 12; n++) {
                s.setInt(1, n);
                s.setString(2, "value " + n);
                try (ResultSet rows = s.executeQuery()) {
                    right &= rows.next() && rows.getInt(1) == n + 1 && rows.getString(2).equals("value " + n);
                }
            }
            must(right, "prepared");
        }
    }

    static void batch(Connection session) throws SQLException {
        try (PreparedStatement s = session.prepareStatement("INSERT INTO t VALUES (?, ?)")) {
            for (int n = 0; n < 1000; n++) {
                s.setInt(1, n);
                s.setString(2, "x".repeat(n % 60));
                s.addBatch();
            }
            must(s.executeBatch().length == 1000 && one(session, "SELECT count(*) FROM t") == 1000, "batch");
        }
    }

    static void cursor(Connection session) throws SQLException {
        session.setAutoCommit(false);
        int seen = 0;
        try (Statement s = session.createStatement()) {
            s.setFetchSize(64);
            try (ResultSet rows = s.executeQuery("SELECT * FROM t ORDER BY a")) {
                while (rows.next()) seen += 1;
            }
        }
        session.commit();
        must(seen == 1000, "cursor");
    }

    static void transaction(Connection session) throws SQLException {
        try (Statement s = session.createStatement()) {
            s.executeUpdate("DELETE FROM t");
            Savepoint point = session.setSavepoint();
            boolean failed = false;
            try {
                s.executeQuery("SELECT 1/0");
            } catch (SQLException e) {
                failed = e.getSQLState().equals("22012");
            }
            session.rollback(point);
            session.rollback();
            session.setAutoCommit(true);
            must(failed && one(session, "SELECT count(*) FROM t") == 1000, "transaction");
        }
    }

    static void copy(Connection session) throws Exception {
        String rows = "7\tcopied\n".repeat(5000);
        session.unwrap(PGConnection.class).getCopyAPI().copyIn("COPY t FROM STDIN", new StringReader(rows));
        must(one(session, "SELECT count(*) FROM t WHERE b = 'copied'") == 5000, "copy");
    }

    static void cancel(Connection session) throws Exception {
        try (Statement s = session.createStatement()) {
            s.setQueryTimeout(1);
            boolean cancelled = false;
            try {
                s.executeQuery("SELECT pg_sleep(600)");
            } catch (SQLException e) {
                cancelled = e.getSQLState().equals("57014");
            }
            must(cancelled, "cancel");
        }
        must(one(session, "SELECT 1") == 1, "survives");
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection session = DriverManager.getConnection(arguments[0])) {
            prepared(session);
            try (Statement s = session.createStatement()) {
                s.execute("CREATE TEMP TABLE t (a int, b text)");
            }
            batch(session);
            cursor(session);
            transaction(session);
            copy(session);
            cancel(session);
        }
    }
}
